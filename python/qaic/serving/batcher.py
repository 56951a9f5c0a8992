"""Dynamic batching: requests of many clients share the inferences of a program."""

import collections
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from qaic.errors import DeviceTimeoutError, InferenceError, StateError
from qaic.serving.batch_shapes import AdmittedRequest, BatchShapes
from qaic.session import Session

_logger = logging.getLogger("qaic.serving")

Outputs = dict[str, NDArray[Any]]

#: a shorter inference runs on the thread that starts it, because waking another thread takes longer
_SHORT_NS: Final = 300_000
#: consecutive short inferences before one runs there, and seconds that one may take there
_SHORT_IN_A_ROW: Final = 4
_LONGEST_HERE_S: Final = 0.005

#: bytes of inputs from which another thread stacks them: copying takes longer than a millisecond
_LARGE_BYTES: Final = 4 << 20

#: default for the largest number of waiting requests
MAX_QUEUE_SIZE: Final = 1024


@dataclass(frozen=True, slots=True)
class BatchReport:
    """Outcome of an inference of a batcher."""

    #: Requests that shared it.
    requests: int
    #: Rows of the requests.
    rows: int
    #: Rows of the inference, with those that fill it up.
    size: int
    #: Nanoseconds from the stacking of the batch to its end.
    run_ns: int
    #: Error of the inference; None if it succeeded.
    error: Exception | None


class BatchedRequest(Future["Outputs"]):
    """Future result of a request. Until the device has the request, ``cancel`` removes it from the queue."""

    def __init__(self, batcher: "Batcher", admitted: AdmittedRequest, deadline: float | None) -> None:
        super().__init__()
        self._batcher = batcher
        self.admitted = admitted
        #: by time.monotonic()
        self.deadline = deadline
        self.arrived_ns = time.monotonic_ns()
        #: true if the request gets an inference of its own, after a shared one failed
        self.is_alone = False
        #: time of the start on the device; 0 while the request waits
        self.started_ns = 0

    def cancel(self) -> bool:
        """Withdraw the request; return False if the device has it or it has ended."""
        if not super().cancel():
            return False
        self._batcher.taken_back(self)
        return True

    def finish(self, outputs: Outputs | None, error: BaseException | None = None) -> None:
        """End with outputs or an exception, unless it has ended."""
        try:
            if error is not None:
                self.set_exception(error)
            elif outputs is not None:
                self.set_result(outputs)
        except InvalidStateError:
            # The request was cancelled in the meantime.
            return


class Batcher:
    """Queue of requests in front of a session.

    A full batch starts when an exec object is free. A partial batch starts when an activation
    is idle and its oldest request has waited ``max_queue_delay_s``. Requests of one group of shapes
    keep their order.

    Nothing else may run on `session`. A request waits at most `max_queue_delay_s` seconds for others to share
    its batch, and at most `max_queue_size` requests wait. `schedule` runs a function soon, as
    ``loop.call_soon`` does; requests that arrive until then share a batch. ``None``: at once, on the thread
    that submits. `on_batch` is called when an inference has ended, from any thread and with no lock held; it
    must not block. `name` is that of the model.

    All methods may be called from any number of threads; none blocks but `close`. Inferences that have been
    short run on the thread that submits, for some milliseconds at most; one that takes longer begins again on
    the session's threads.
    """

    def __init__(
        self,
        session: Session,
        shapes: BatchShapes,
        *,
        max_queue_delay_s: float = 0.0,
        max_queue_size: int = MAX_QUEUE_SIZE,
        schedule: Callable[[Callable[[], None]], object] | None = None,
        on_batch: Callable[[BatchReport], object] | None = None,
        name: str = "model",
    ) -> None:
        self._session = session
        self._shapes = shapes
        self._delay_s = max_queue_delay_s
        self._max_queue_size = max_queue_size
        self._schedule = schedule
        self._on_batch = on_batch
        self._name = name
        options = session.backend_options()
        self._activations = _number(options, "num_activations")
        self._exec_objects = self._activations * _number(options, "set_size")
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._queues: dict[Any, collections.deque[BatchedRequest]] = {}
        #: number of waiting requests
        self.waiting = 0
        #: number of inferences on the device
        self.running = 0
        self._busy_ns = 0
        self._busy_since_ns = 0
        # Any thread writes it; a missed update only costs a little time.
        self._short_in_a_row = 0
        self._is_pumping = False
        self._is_scheduled = False
        self._is_closed = False
        self._alarm: threading.Timer | None = None

    @property
    def busy_s(self) -> float:
        """Seconds so far in which the device had an inference."""
        with self._lock:
            present_ns = time.monotonic_ns() - self._busy_since_ns if self.running else 0
            return (self._busy_ns + present_ns) / 1e9

    def submit(self, inputs: Mapping[str, NDArray[Any]], *, timeout_s: float | None = None) -> BatchedRequest:
        """Queue a request and return its future. The arrays must not change until the request ends.

        A request that still waits after `timeout_s` seconds is refused; ``None`` is no limit. Raises
        InputError if the inputs do not fit the program, and StateError if the queue is full
        (``serving.queue_full``) or the batcher is closed (``serving.closed``).
        """
        admitted = self._shapes.admit(inputs)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        request = BatchedRequest(self, admitted, deadline)
        with self._lock:
            if self._is_closed:
                raise self._closed_error()
            if self.waiting >= self._max_queue_size:
                raise StateError(
                    f"model {self._name!r}: the number of waiting requests is {self.waiting}, the limit",
                    code="serving.queue_full",
                    hints=("retry later; max_queue_size sets the limit",),
                )
            self._queues.setdefault(admitted.group, collections.deque()).append(request)
            self.waiting += 1
            is_scheduled, self._is_scheduled = self._is_scheduled, self._schedule is not None
        if self._schedule is None:
            self._pump()
        elif not is_scheduled:
            self._schedule(self._scheduled)
        return request

    def _scheduled(self) -> None:
        with self._lock:
            self._is_scheduled = False
        self._pump()

    def taken_back(self, request: BatchedRequest) -> None:
        """Forget a request that was cancelled before the device had it."""
        with self._lock:
            queue = self._queues.get(request.admitted.group)
            if queue is not None and request in queue:
                queue.remove(request)
                self.waiting -= 1
                if not queue:
                    del self._queues[request.admitted.group]
                self._idle.notify_all()

    def hurry(self) -> None:
        """Start requests without waiting for others to share their batch."""
        with self._lock:
            self._delay_s = 0.0
        self._pump()

    def close(self, timeout_s: float | None = None) -> bool:
        """Accept no more requests, and wait until all accepted ones have ended. Blocking.

        Requests that still wait after `timeout_s` seconds are refused; ``None`` is no limit. Returns True if
        all ended.
        """
        with self._lock:
            self._is_closed = True
        if timeout_s != 0:
            self.hurry()
        with self._lock:
            is_idle = self._idle.wait_for(lambda: not self.waiting and not self.running, timeout_s)
            left = [request for queue in self._queues.values() for request in queue]
            self._queues.clear()
            self.waiting = 0
            alarm, self._alarm = self._alarm, None
        if alarm is not None:
            alarm.cancel()
        for request in left:
            request.finish(None, self._closed_error())
        return is_idle

    def _closed_error(self) -> StateError:
        return StateError(
            f"model {self._name!r} is being unloaded",
            code="serving.closed",
            hints=("retry later",),
        )

    # --- batches --------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Start every batch that can start. One thread at a time, which sees concurrent changes of others."""
        with self._lock:
            if self._is_pumping:
                return
            self._is_pumping = True
        while True:
            late: list[BatchedRequest] = []
            with self._lock:
                batch = self._take_batch(late)
                if not batch and not late:
                    self._is_pumping = False
                    self._idle.notify_all()
                    return
                if batch:
                    if not self.running:
                        self._busy_since_ns = time.monotonic_ns()
                    self.running += 1
            for request in late:
                request.finish(None, self.late_error(request))
            if batch and self._schedule is not None and _size(batch) > _LARGE_BYTES:
                threading.Thread(target=self._start, args=(batch,), name="large-batch", daemon=True).start()
            elif batch:
                self._start(batch)

    def late_error(self, request: BatchedRequest) -> DeviceTimeoutError:
        """Return the error of a request whose deadline has passed."""
        waited_ms = (time.monotonic_ns() - request.arrived_ns) // 1_000_000
        return DeviceTimeoutError(
            f"model {self._name!r}: the request waited {waited_ms} ms and no inference started",
            code="serving.deadline",
        )

    def _take_batch(self, late: list[BatchedRequest]) -> list[BatchedRequest]:
        """Remove the requests of the next batch from the queue; none if none may start now.

        Those whose deadline has passed go to ``late`` instead.
        """
        if self.running >= self._exec_objects:
            return []
        batch: list[BatchedRequest] = []
        # The group whose oldest request waits longest comes first.
        for queue in sorted(self._queues.values(), key=lambda queue: queue[0].arrived_ns):
            # Requests that were cancelled in the meantime leave the queue without a batch.
            while queue and not batch and not late and (count := self._startable(queue)):
                now = time.monotonic()
                for _ in range(count):
                    request = queue.popleft()
                    self.waiting -= 1
                    # From here on, the request cannot be cancelled.
                    if not (request.is_alone or request.set_running_or_notify_cancel()):
                        continue
                    is_late = request.deadline is not None and request.deadline <= now
                    (late if is_late else batch).append(request)
                if not queue:
                    del self._queues[request.admitted.group]
            if batch or late:
                break
        return batch

    def _startable(self, queue: collections.deque[BatchedRequest]) -> int:
        """Return the number of requests of a queue that form the next batch; 0 if it must wait."""
        if queue[0].is_alone:
            return 1
        capacity = self._shapes.capacity(queue[0].admitted.group)
        count, rows = 0, 0
        for request in queue:
            if request.is_alone or rows + request.admitted.rows > capacity:
                break
            rows += request.admitted.rows
            count += 1
        if rows == capacity or count < len(queue):
            return count
        if self.running >= self._activations:
            return 0
        rest_s = self._delay_s - (time.monotonic_ns() - queue[0].arrived_ns) / 1e9
        if rest_s > 0:
            if self._alarm is None:
                self._alarm = threading.Timer(rest_s, self._alarmed)
                self._alarm.daemon = True
                self._alarm.start()
            return 0
        return count

    def _alarmed(self) -> None:
        with self._lock:
            self._alarm = None
        self._pump()

    def _start(self, batch: list[BatchedRequest]) -> None:
        started_ns = time.monotonic_ns()
        for request in batch:
            request.started_ns = started_ns
        outputs, failed = None, None
        try:
            inputs = self._shapes.stack([request.admitted for request in batch])
            # One exec object stays free: an abandoned inference may keep its own for a while.
            has_room = self.running == 1 and self._exec_objects > 1
            if has_room and self._short_in_a_row >= _SHORT_IN_A_ROW:
                outputs = self._run_here(inputs)
            if outputs is None:
                future = self._session.submit(inputs)
        except Exception as error:  # noqa: BLE001 (it belongs to the clients)
            failed = error
        # This call is outside of the block, so that a batch ends once even if its end fails.
        if outputs is None and failed is None:
            future.add_done_callback(lambda done: self._done(batch, done))
        else:
            self._ended(batch, outputs, failed)

    def _run_here(self, inputs: Outputs) -> Outputs | None:
        """Run a probably short inference; return None if it was long and must start again elsewhere."""
        try:
            return self._session.run(inputs, timeout=_LONGEST_HERE_S)
        except DeviceTimeoutError:
            self._short_in_a_row = 0
            return None

    def _done(self, batch: list[BatchedRequest], future: Future[Outputs]) -> None:
        outputs, failed = None, None
        try:
            outputs = future.result()
        except Exception as error:  # noqa: BLE001 (it belongs to the clients)
            failed = error
        self._ended(batch, outputs, failed)

    def _ended(self, batch: list[BatchedRequest], outputs: Outputs | None, error: Exception | None) -> None:
        run_ns = time.monotonic_ns() - batch[0].started_ns
        self._short_in_a_row = self._short_in_a_row + 1 if run_ns < _SHORT_NS else 0
        admitted = [request.admitted for request in batch]
        rows = sum(request.rows for request in admitted)
        size = self._shapes.batch_size(admitted[0].group, rows)
        # A request that fails must not fail the others in its batch.
        is_alone = len(batch) == 1 or not isinstance(error, InferenceError)
        with self._lock:
            self.running -= 1
            if not self.running:
                self._busy_ns += time.monotonic_ns() - self._busy_since_ns
        if self._on_batch is not None:
            try:
                self._on_batch(BatchReport(len(batch), rows, size, run_ns, error))
            except Exception:
                # Clients still get their responses.
                _logger.exception("model %r: an inference could not be counted", self._name)
        if outputs is not None:
            for request, part in zip(batch, self._shapes.split(admitted, outputs), strict=True):
                request.finish(part)
        elif is_alone:
            for request in batch:
                request.finish(None, error)
        else:
            self._queue_alone(batch)
        self._pump()

    def _queue_alone(self, batch: list[BatchedRequest]) -> None:
        """Queue requests again, before all others, each for a separate inference."""
        with self._lock:
            queue = self._queues.setdefault(batch[0].admitted.group, collections.deque())
            for request in reversed(batch):
                request.is_alone = True
                queue.appendleft(request)
            self.waiting += len(batch)


def _size(batch: list[BatchedRequest]) -> int:
    return sum(array.nbytes for request in batch for array in request.admitted.inputs.values())


def _number(options: Mapping[str, object], name: str) -> int:
    value = options[name]
    if not isinstance(value, int):
        raise TypeError(name)
    return value
