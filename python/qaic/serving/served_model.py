"""Loaded version of a model, with its batcher."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from numpy.typing import NDArray

from qaic.errors import DeviceLostError, OptionError, QaicError
from qaic.qpc import TensorSpec
from qaic.serving.batch_shapes import BatchShapes
from qaic.serving.batcher import BatchedRequest, Batcher, BatchReport
from qaic.serving.model_config import BACKEND, ModelSettings, check_tensors, complete_config
from qaic.serving.request_body import datatype_of
from qaic.serving.statistics import Metrics, ModelStatistics
from qaic.session import Session

_logger = logging.getLogger("qaic.serving")

#: seconds between two attempts to load a program again after its device was lost
_FIRST_RETRY_S: Final = 0.05
_LONGEST_RETRY_S: Final = 5.0
_RESET_S: Final = 60.0
#: inputs or outputs of a request beyond those of the model, which are decoded and compared by name
_MOST_WRONG: Final = 16


class ServedModel:
    """Program that answers requests. Blocking while it is loaded, and compiled if it is an ONNX file.

    `session` is closed with the model, and when the model cannot be loaded; `schedule` is that of `Batcher`.
    Raises OSError or QaicError if it cannot be loaded.
    """

    def __init__(
        self,
        settings: ModelSettings,
        version: int,
        session: Session,
        metrics: Metrics,
        schedule: Callable[[Callable[[], None]], object] | None,
    ) -> None:
        self.name = settings.name
        self.version = version
        self.settings = settings
        self.session = session
        # A request with few wrong tensors gets an error that names them.
        self.most_tensors = max(len(session.inputs), len(session.outputs)) + _MOST_WRONG
        self._lost = ""
        self._lock = threading.Lock()
        self._retired = threading.Event()
        try:
            check_tensors(settings, self.session.inputs, self.session.outputs)
            self.session.setup()
            self.shapes = BatchShapes(
                self.session,
                is_batched=settings.max_batch_size != 0,
                is_declared=settings.declares_rows_independent,
            )
            self._check_batch()
        except BaseException:
            self.session.close()
            raise
        self.statistics = ModelStatistics(self.name, version, metrics)
        self.batcher = Batcher(
            self.session,
            self.shapes,
            max_queue_delay_s=settings.max_queue_delay_s,
            max_queue_size=settings.max_queue_size,
            schedule=schedule,
            on_batch=self._batch_ended,
            name=self.name,
        )

    def _check_batch(self) -> None:
        asked, offered = self.settings.max_batch_size, self.shapes.first_dimension
        if asked and asked != offered:
            raise OptionError(
                f"config.pbtxt of {self.name!r} sets max_batch_size {asked}; the container has {offered}"
                + (f": {self.shapes.reason}" if not offered else ""),
                code="serving.config",
                hints=("omit it to use the value of the container",),
            )
        if self.shapes.reason:
            _logger.warning(
                "model %r is served without batches: %s%s",
                self.name,
                self.shapes.reason,
                "; if the rows are independent, declare this in config.pbtxt: "
                f"max_batch_size: {offered} dynamic_batching {{ }}"
                if offered > 1
                else "",
            )

    # --- requests -------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Return True if requests are answered now."""
        return not self._lost and not self._retired.is_set()

    async def infer(
        self, inputs: Mapping[str, NDArray[Any]], timeout_s: float | None
    ) -> dict[str, NDArray[Any]]:
        """Answer one request; cancelling the task removes it from the queue.

        Raises the errors of `Batcher.submit` and of the inference.
        """
        if self._lost:
            raise self._lost_error()
        if timeout_s is None:
            timeout_s = self.settings.default_timeout_s
        request = self.batcher.submit(inputs, timeout_s=timeout_s)
        is_success = False
        try:
            async with asyncio.timeout(timeout_s):
                outputs = await _ended(request)
            is_success = True
        except TimeoutError as error:
            if isinstance(error, QaicError):
                raise
            raise self.batcher.late_error(request) from None
        finally:
            ended_ns = time.monotonic_ns()
            started_ns = request.started_ns or ended_ns
            self.statistics.request_ended(
                queue_ns=started_ns - request.arrived_ns,
                run_ns=ended_ns - started_ns,
                is_success=is_success,
            )
        return outputs

    def _batch_ended(self, report: BatchReport) -> None:
        self.statistics.batch_ended(report)
        if isinstance(report.error, DeviceLostError):
            with self._lock:
                is_known, self._lost = bool(self._lost), report.error.message
            if not is_known:
                _logger.error("model %r: %s; loading it again", self.name, report.error.message)
                threading.Thread(target=self._recover, name=f"recover-{self.name}", daemon=True).start()

    def _lost_error(self) -> DeviceLostError:
        return DeviceLostError(
            f"model {self.name!r} waits for its device: {self._lost}",
            code="serving.device_lost",
            hints=("retry later",),
        )

    def _recover(self) -> None:
        """Load the program repeatedly until the device accepts it."""
        delay_s = _FIRST_RETRY_S
        while not self._retired.wait(delay_s):
            try:
                self.session.reset(timeout=_RESET_S)
                self.session.setup()
            except (QaicError, OSError) as error:
                delay_s = min(2 * delay_s, _LONGEST_RETRY_S)
                self._lost = getattr(error, "message", str(error))
                continue
            self._lost = ""
            _logger.warning("model %r responds again", self.name)
            return

    def retire(self, timeout_s: float | None) -> bool:
        """Answer the queued requests, then release the device. Blocking.

        Queued requests have `timeout_s` seconds. Returns True if all were answered.
        """
        all_answered = self.batcher.close(timeout_s)
        self._retired.set()
        self.session.close()
        return all_answered

    # --- descriptions ---------------------------------------------------------------------------------------

    def metadata(self, versions: list[int]) -> dict[str, Any]:
        """Describe the model in the form of the protocol."""
        return {
            "name": self.name,
            "versions": [str(version) for version in versions],
            "platform": BACKEND,
            "inputs": self._tensors(self.session.inputs),
            "outputs": self._tensors(self.session.outputs),
        }

    def _tensors(self, specs: tuple[TensorSpec, ...]) -> list[dict[str, Any]]:
        return [
            {"name": spec.name, "datatype": datatype_of(spec.dtype), "shape": self._shape(spec)}
            for spec in specs
        ]

    def _shape(self, spec: TensorSpec) -> list[int]:
        """Return a shape for clients, with -1 for dimensions of several sizes."""
        shapes = self.shapes.shapes_of(spec.name)
        sizes = [shapes[0][axis] if _same(shapes, axis) else -1 for axis in range(len(spec.shape))]
        return [-1, *sizes[1:]] if self.shapes.is_batched else sizes

    def config(self) -> Any:
        """Return the configuration, completed from the container, as the message of the protocol."""
        return complete_config(
            self.settings,
            self.session.inputs,
            self.session.outputs,
            self.shapes.max_batch_size,
            self._shape,
        )


async def _ended(request: BatchedRequest) -> dict[str, NDArray[Any]]:
    """Await a request, and cancel it with the task. `asyncio.wrap_future` needs 20 objects more."""
    end = asyncio.get_running_loop().create_future()
    request.add_done_callback(partial(_wake, end))
    try:
        await end
    except asyncio.CancelledError:
        request.cancel()
        raise
    return request.result()


def _wake(end: asyncio.Future[None], _request: object) -> None:
    # The event loop may have ended before the inference.
    with contextlib.suppress(RuntimeError):
        end.get_loop().call_soon_threadsafe(_set_ended, end)


def _set_ended(end: asyncio.Future[None]) -> None:
    if not end.done():
        end.set_result(None)


def _same(shapes: list[tuple[int, ...]], axis: int) -> bool:
    return len({shape[axis] for shape in shapes}) == 1
