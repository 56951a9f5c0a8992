"""Random inputs for profiling: the same ones every time, and such that a model can digest them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from qaic.compiler.calibration.dataset import Sample, SampledInput
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS

#: more would only widen ranges that mean nothing
RANDOM_SAMPLES: Final = 8
_SEED: Final = 0


class RandomSource:
    """Random data: floats uniform in [0, 1) or normal, integers small enough to be indices.

    Parameters
    ----------
    inputs
        Inputs of the model; the first set of shapes is used. State is left out.
    kind
        ``"uniform"`` or ``"gaussian"``.
    limits
        Exclusive upper limits of integer inputs by name, where the model has tables (`index_limits`).
    """

    option = "use_random_input_data"
    count = RANDOM_SAMPLES

    def __init__(self, inputs: Sequence[SampledInput], kind: str, limits: Mapping[str, int]) -> None:
        self._inputs = [item for item in inputs if not item.is_state]
        self._kind = kind
        self._limits = limits

    def samples(self) -> Iterator[Sample]:
        """See `SampleSource.samples`. The same numbers each time."""
        generator = np.random.default_rng(_SEED)
        for number in range(1, self.count + 1):
            arrays = {item.name: self._array(item, generator) for item in self._inputs}
            yield Sample(f"random sample {number}", arrays)

    def _array(self, item: SampledInput, generator: np.random.Generator) -> NDArray[Any]:
        shape = item.shapes[0]
        if item.dtype.kind == "f":
            draw = generator.standard_normal if self._kind == "gaussian" else generator.random
            return draw(shape, np.float32).astype(item.dtype)
        # 0 and 1 are flags, masks and indices of almost any table.
        high = min(
            self._limits.get(item.name, 2), int(np.iinfo(item.dtype).max) if item.dtype.kind in "iu" else 2
        )
        return generator.integers(0, max(high, 1), shape, np.int64).astype(item.dtype)


def index_limits(graph: onnx.GraphProto, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Find how large the numbers in integer inputs may be: the tables they look things up in show it.

    Parameters
    ----------
    graph
        Main graph.
    shapes
        Shapes of its values, -1 for dims that differ between sets of shapes.
    """
    readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in graph.node:
        for position, name in enumerate(node.input):
            readers.setdefault(name, []).append((node, position))
    limits: dict[str, int] = {}
    for value in graph.input:
        seen, pending = {value.name}, deque([value.name])
        found: list[int] = []
        while pending:
            for node, position in readers.get(pending.popleft(), []):
                if node.domain not in STANDARD_DOMAINS:
                    continue
                if node.op_type in {"Gather", "GatherElements"} and position == 1:
                    axis = next((item.i for item in node.attribute if item.name == "axis"), 0)
                    table = shapes.get(node.input[0], ())
                    if -len(table) <= axis < len(table) and table[axis] > 0:
                        found.append(table[axis])
                elif node.op_type in _PASS_ON and position == 0:
                    pending.extend(name for name in node.output if name not in seen)
                    seen.update(node.output)
        if found:
            limits[value.name] = min(found)
    return limits


#: operators whose results hold the numbers of their first input
_PASS_ON: Final = frozenset(
    {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten", "Slice"}
)
