"""ONNX graphs that are written node by node; weights have shapes but no values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
from onnx import TensorProto, helper

if TYPE_CHECKING:
    from pathlib import Path

#: File of all weights; their values are a hole in it.
_WEIGHTS_FILE = "weights.bin"
#: Alignment in bytes of external data in the loader.
_ALIGNMENT = 4096


class Graph:
    """A graph under construction.

    Parameters
    ----------
    name : str
        Name of the network.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._bytes = 0
        self._count = 0

    def input(self, name: str, dims: tuple[int, ...], elem_type: int = TensorProto.FLOAT) -> str:
        """Add an input."""
        self._inputs.append(helper.make_tensor_value_info(name, elem_type, dims))
        return name

    def output(self, value: str, dims: tuple[int, ...]) -> None:
        """Make a value an output."""
        self._outputs.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, dims))

    def weight(self, *dims: int) -> str:
        """Add a float32 weight."""
        size = 4
        for dim in dims:
            size *= dim
        tensor = TensorProto(name=self._next("w"), data_type=TensorProto.FLOAT, dims=dims)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", _WEIGHTS_FILE), ("offset", self._bytes), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        self._bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        self._weights.append(tensor)
        return tensor.name

    def number(self, *values: float) -> str:
        """Add a small float32 constant: a scalar, or a list of several."""
        return self._constant(TensorProto.FLOAT, values)

    def integers(self, *values: int) -> str:
        """Add a list of integers."""
        return self._constant(TensorProto.INT64, values, is_list=True)

    def add(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node; returns its first output."""
        return self.add_all(op_type, *inputs, outputs=outputs, **attributes)[0]

    def add_all(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        """Add a node; returns all of its outputs."""
        names = [self._next(op_type) for _ in range(outputs)]
        self._nodes.append(helper.make_node(op_type, inputs, names, name=names[0], **attributes))
        return names

    def save(self, folder: Path) -> Path:
        """Write the model and its file of weights, which uses no disk space; return the path of the model."""
        graph = helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        with (folder / _WEIGHTS_FILE).open("wb") as file:
            file.truncate(self._bytes)
        path = folder / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    def _constant(self, elem_type: int, values: tuple[Any, ...], *, is_list: bool = False) -> str:
        dims = [len(values)] if is_list or len(values) > 1 else []
        tensor = helper.make_tensor(self._next("c"), elem_type, dims, values)
        self._weights.append(tensor)
        return tensor.name

    def _next(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._count}"
