"""Input data of ``qaic-runner`` in memory: read once where all of it fits, else as it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qaic import rt

if TYPE_CHECKING:
    from qaic.cli.runner.inputs.requests import Request


class InputMemory:
    """Inputs of all requests, within a bound.

    Parameters
    ----------
    requests
        The inferences that are run, again and again.
    limit_bytes
        Data held at a time. One inference is held even when it is larger.
    """

    def __init__(self, requests: Sequence[Request], limit_bytes: int) -> None:
        sizes = [request.input_bytes for request in requests]
        self._requests = requests
        self._keeps = sum(sizes) <= limit_bytes
        self._kept: dict[int, list[NDArray[np.uint8]]] = {}
        #: inferences that may be in flight, each holding its own data; None when all data is shared
        self.most_in_flight = None if self._keeps else max(1, limit_bytes // max(1, *sizes))

    def load(self, number: int) -> list[NDArray[np.uint8]]:
        """Bytes of all inputs of a request; of those that are skipped, none. Blocking: may read files."""
        if (kept := self._kept.get(number)) is not None:
            return kept
        empty = np.empty(0, np.uint8)
        loaded = [empty if part.skipped else part.read() for part in self._requests[number].inputs]
        if self._keeps:
            self._kept[number] = loaded
        return loaded


class Slot:
    """Inputs and outputs of one handle.

    The arrays belong to the slot and stay the same while the shapes do, so that nothing is allocated per
    inference.
    """

    def __init__(self) -> None:
        self.request: Request | None = None
        self.inputs: list[NDArray[np.uint8]] = []
        self.outputs: list[NDArray[np.uint8]] = []
        self._output_buffers: list[Any] = []

    def wire(
        self,
        handle: rt.InferenceHandle,
        request: Request,
        inputs: list[NDArray[np.uint8]],
    ) -> rt.QStatus:
        """Make a handle's next inference read and write this slot."""
        sizes = [0 if part.skipped else part.nbytes for part in request.outputs]
        if sizes != [len(array) for array in self.outputs] or not self._output_buffers:
            self.outputs = [np.empty(size, np.uint8) for size in sizes]
            self._output_buffers = [_buffer(array) for array in self.outputs]
        # Dims first: alone, buffers would be taken for those of the compiled shapes.
        status: rt.QStatus = handle.setBufferDimensions(request.dims)
        if status == rt.QStatus.QS_SUCCESS:
            status = handle.setBuffers([_buffer(array) for array in inputs] + self._output_buffers)
        self.request = request
        self.inputs = inputs
        return status


def _buffer(array: NDArray[np.uint8]) -> rt.QBuffer:
    return rt.QBuffer(array.data) if len(array) else rt.QBuffer(b"")
