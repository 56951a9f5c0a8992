"""Rows of a constant table that is gathered from, each stored with its own step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from qaic.compiler.ir.constants.propagation import ConstantReader, read_array
from qaic.compiler.ir.constants.weights import Weight
from qaic.compiler.ir.elem_types import FLOAT, UINT8
from qaic.compiler.ir.precision_ops import standard
from qaic.compiler.ir.quantization import PlannedTable, QuantizedGroup
from qaic.compiler.quantization.parameters import value_range
from qaic.options.table import CompileOptions

if TYPE_CHECKING:
    from qaic.compiler.quantization.insert_qdq import Inserter


@dataclass(frozen=True, slots=True)
class RowSource:
    """A float32 table as uint8: value = step x number + smallest of the row."""

    inner: Weight
    steps: npt.NDArray[np.float32]
    lows: npt.NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.inner.source.nbytes // 4

    def chunks(self) -> Iterator[bytes]:
        """Quantize row by row."""
        rows = read_array(self.inner).reshape(len(self.steps), -1)
        for row, step, low in zip(rows, self.steps, self.lows, strict=True):
            yield np.clip(np.rint((row - low) / step), 0, 255).astype(np.uint8).tobytes()


def is_rowwise(
    node: onnx.NodeProto, constants: ConstantReader, options: CompileOptions, precision: str
) -> bool:
    """Return whether a node gathers rows of a constant table, and rows are to be quantized one by one."""
    if not standard(node, "Gather") or not options.enable_rowwise:
        return False
    weight = constants.describe(node.input[0])
    return (
        precision == "Int8"
        and weight is not None
        and weight.elem_type == FLOAT
        and len(weight.dims) > 1
        and min(weight.dims) > 0
        and all(attribute.i == 0 for attribute in node.attribute if attribute.name == "axis")
    )


def plan_table(name: str, constants: ConstantReader) -> PlannedTable:
    """Choose a step for every row of a table.

    Raises CompileError if a value is not finite.
    """
    values = constants.read(name)
    rows = values.reshape(len(values), -1)
    value_range(rows, name)
    low, high = rows.min(axis=1), rows.max(axis=1)
    step = ((high.astype(np.float64) - low) / 255).astype(np.float32)
    step[step == 0] = 1
    return PlannedTable(name, step, low)


def insert_table(inserter: Inserter, planned: QuantizedGroup, table: PlannedTable) -> None:
    """Write a Gather of rows: numbers, steps and smallest values are gathered, then put together."""
    group = planned.group
    places = group.node.input[1]
    stored, steps, lows = (inserter.fresh.make(table.name, part) for part in ("rows", "steps", "lows"))
    if table.name in inserter.tables:
        stored, steps, lows = inserter.tables[table.name]
    else:
        inserter.tables[table.name] = (stored, steps, lows)
        weight = inserter.constants.describe(table.name)
        if weight is None:
            raise KeyError(table.name)
        source = RowSource(weight, table.steps, table.lows)
        inserter.constants.add(Weight(stored, UINT8, weight.dims, source))
        shape = (weight.dims[0],) + (1,) * (len(weight.dims) - 1)
        inserter.constants.add_array(steps, table.steps.reshape(shape))
        inserter.constants.add_array(lows, table.lows.reshape(shape))
    names = [inserter.fresh.make(group.output, part) for part in ("numbers", "cast", "step", "low", "scaled")]
    numbers, cast, step_name, low_name, scaled = names
    inserter.add(helper.make_node("Gather", [stored, places], [numbers]))
    inserter.add(helper.make_node("Cast", [numbers], [cast], to=FLOAT))
    inserter.add(helper.make_node("Gather", [steps, places], [step_name]))
    inserter.add(helper.make_node("Gather", [lows, places], [low_name]))
    inserter.add(helper.make_node("Mul", [cast, step_name], [scaled]))
    for name in names:
        inserter.note(name, UINT8 if name == numbers else FLOAT, None)
    inserter.finish(planned, helper.make_node("Add", [scaled, low_name], [group.output]))
