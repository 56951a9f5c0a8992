"""Loop of ``qaic-runner`` that keeps an inference set busy until enough inferences are complete."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from qaic import rt
from qaic.cli.runner.latencies import RunProgress
from qaic.cli.runner.network import Request
from qaic.cli.runner.outputs import Comparer, Writer
from qaic.errors import (
    DeviceError,
    DeviceMemoryError,
    DeviceNotFoundError,
    DeviceTimeoutError,
    InferenceError,
)

_OK = rt.QStatus.QS_SUCCESS


@dataclass(kw_only=True, eq=False)
class Loop:
    """Runs requests in turn on an inference set."""

    inference_set: rt.InferenceSet
    #: Activations of the set.
    activations: int
    #: Requests in the order of their runs; the first follows the last.
    requests: Sequence[Request]
    #: Samples of each request.
    samples: Sequence[int]
    #: Inputs of the requests.
    memory: "InputMemory"
    #: Number of handles that are used.
    most_in_flight: int
    #: Progress, which counts completions and whose fault ends the run.
    progress: RunProgress
    #: Consumers of the outputs, before a handle is used again.
    writer: Writer | None
    comparer: Comparer | None
    _slots: "dict[int, Slot]" = field(init=False, default_factory=dict)
    # Handle -> inference.
    _in_flight: dict[int, int] = field(init=False, default_factory=dict)
    # Requests for inferences whose outputs are written.
    _written: dict[int, Request] = field(init=False, default_factory=dict)

    def warm_up(self, count: int) -> None:
        """Run inferences without using their results. Blocking. Raises QaicError if an inference failed."""
        kept = self.writer, self.comparer
        self.writer = self.comparer = None
        self.run(count, None)
        self.writer, self.comparer = kept
        self.progress.completed = self.progress.samples = 0

    def run(self, count: int | None, seconds: float | None) -> int:
        """Run ``count`` inferences, or for ``seconds``. Blocking.

        Returns the nanoseconds from the first submission to the last completion. Raises QaicError if an
        inference failed, or its output is not the expected one.
        """
        started = time.perf_counter_ns()
        until = None if seconds is None else started + int(seconds * 1e9)
        issued = 0
        in_flight = self._in_flight
        while True:
            while (
                len(in_flight) < self.most_in_flight
                and (count is None or issued < count)
                and (until is None or time.perf_counter_ns() < until)
            ):
                self._submit(issued)
                issued += 1
            if not in_flight:
                return time.perf_counter_ns() - started
            self._collect()

    def _submit(self, iteration: int) -> None:
        status, handle = self.inference_set.getAvailable()
        if status != _OK or handle is None:
            _fail(status, "no handle became free")
        key = handle.getId()
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = Slot()
        request = self._request(iteration)
        if slot.request is not request:
            status = slot.wire(handle, request, self.memory.load(iteration % len(self.requests)))
            if status != _OK:
                _fail(status, f"inference {iteration}: its buffers were refused")
        self._in_flight[key] = iteration
        status = self.inference_set.submit(handle, iteration)
        if status != _OK:
            _fail(status, f"inference {iteration} was refused")

    def _request(self, iteration: int) -> Request:
        number = iteration % len(self.requests)
        if self.writer is None or not self.writer.wants_outputs(iteration):
            return self.requests[number]
        if number not in self._written:
            self._written[number] = self.requests[number].with_statistics()
        return self._written[number]

    def _collect(self) -> None:
        status, handle = self.inference_set.getCompleted()
        if handle is None:
            _fail(status, "an inference failed")
        iteration = self._in_flight.pop(handle.getId())
        if status != _OK:
            _fail(status, f"inference {iteration} failed")
        if self.comparer is not None or self.writer is not None:
            self._use(handle, iteration)
        status = self.inference_set.putCompleted(handle)
        if status != _OK:
            _fail(status, f"inference {iteration}: its handle was not returned")
        self.progress.completed += 1
        self.progress.samples += self.samples[iteration % len(self.samples)]
        if self.progress.fault is not None:
            raise self.progress.fault

    def _use(self, handle: rt.InferenceHandle, iteration: int) -> None:
        key = handle.getId()
        slot = self._slots[key]
        request = self._request(iteration)
        if self.comparer is not None:
            self.comparer.check(iteration, request, slot.outputs)
        if self.writer is not None and self.writer.wants(iteration):
            # Consecutive handle numbers belong to different activations.
            self.writer.write(key % self.activations, iteration, request, slot.inputs, slot.outputs)


def _fail(status: rt.QStatus, what: str) -> NoReturn:
    match status:
        case rt.QStatus.QS_NOMEM:
            raise DeviceMemoryError(f"{what} (QS_NOMEM): see the log above", code="runner.qs_nomem")
        case rt.QStatus.QS_NODEV:
            raise DeviceNotFoundError(f"{what} (QS_NODEV): see the log above", code="runner.qs_nodev")
        case rt.QStatus.QS_TIMEDOUT:
            raise DeviceTimeoutError(f"{what} (QS_TIMEDOUT): see the log above", code="runner.qs_timedout")
        case rt.QStatus.QS_DEV_ERROR:
            raise DeviceError(f"{what} (QS_DEV_ERROR): see the log above", code="runner.qs_dev_error")
        case rt.QStatus.QS_INVAL:
            raise InferenceError(f"{what} (QS_INVAL): see the log above", code="runner.qs_inval")
        case _:
            raise InferenceError(f"{what} ({status.name}): see the log above", code="runner.qs_error")


class InputMemory:
    """Inputs of all requests, in a limited amount of memory.

    `requests` are the inferences that are repeated. `limit_bytes` limits the data in memory at a time; one
    inference is in memory even if it is larger.
    """

    def __init__(self, requests: Sequence[Request], limit_bytes: int) -> None:
        sizes = [request.input_bytes for request in requests]
        self._requests = requests
        self._keeps = sum(sizes) <= limit_bytes
        self._kept: dict[int, list[NDArray[np.uint8]]] = {}
        #: largest number of inferences in flight if each has its own data; None if all data stays in memory
        self.most_in_flight = None if self._keeps else max(1, limit_bytes // max(1, *sizes))

    def load(self, number: int) -> list[NDArray[np.uint8]]:
        """Return the bytes of all inputs of a request that are not skipped. Blocking: may read files."""
        if (kept := self._kept.get(number)) is not None:
            return kept
        empty = np.empty(0, np.uint8)
        loaded = [empty if part.skipped else part.read() for part in self._requests[number].inputs]
        if self._keeps:
            self._kept[number] = loaded
        return loaded


class Slot:
    """Inputs and outputs of one handle.

    The arrays belong to the slot. They are allocated again only if the shapes change.
    """

    def __init__(self) -> None:
        self.request: Request | None = None
        self.inputs: list[NDArray[np.uint8]] = []
        self.outputs: list[NDArray[np.uint8]] = []
        self._output_buffers: list[Any] = []

    def wire(
        self, handle: rt.InferenceHandle, request: Request, inputs: list[NDArray[np.uint8]]
    ) -> rt.QStatus:
        """Set this slot as the buffers of a handle's next inference."""
        sizes = [0 if part.skipped else part.nbytes for part in request.outputs]
        if sizes != [len(array) for array in self.outputs] or not self._output_buffers:
            self.outputs = [np.empty(size, np.uint8) for size in sizes]
            self._output_buffers = [_buffer(array) for array in self.outputs]
        # Dims are set first, because buffers without dims have the compiled shapes.
        status: rt.QStatus = handle.setBufferDimensions(request.dims)
        if status == rt.QStatus.QS_SUCCESS:
            status = handle.setBuffers([_buffer(array) for array in inputs] + self._output_buffers)
        self.request = request
        self.inputs = inputs
        return status


def _buffer(array: NDArray[np.uint8]) -> rt.QBuffer:
    return rt.QBuffer(array.data) if len(array) else rt.QBuffer(b"")
