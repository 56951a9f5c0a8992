"""Decoders in the shapes of published models, with random weights that use little disk space.

The weights of a model overlap in one file of random numbers: each starts one page after the previous one. The
model therefore uses the disk space of its largest weight; the compiled container contains all weights.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx

_TESTS = Path(__file__).parents[2] / "tests"
#: Model -> sizes of `decoder_model`.
MODELS = {
    # A small model for a trial run of a benchmark.
    "0.1B": {
        "layers": 4,
        "heads": 16,
        "groups": 4,
        "width": 64,
        "inner": 2816,
        "vocabulary": 32000,
    },
    "1.1B": {
        "layers": 22,
        "heads": 32,
        "groups": 4,
        "width": 64,
        "inner": 5632,
        "vocabulary": 32000,
    },
    "8B": {
        "layers": 32,
        "heads": 32,
        "groups": 8,
        "width": 128,
        "inner": 14336,
        "vocabulary": 128256,
    },
}
#: Tokens in a chunk of a prompt.
CHUNK = 128
_SEED = 20
_SPREAD = 1 / 64
_STEP = 4096
_HELD = 1 << 22
#: Elements that share a scale in packed weights.
GROUP = 32


def sizes_of(name: str, context: int, elem_type: int) -> Any:
    """Return the sizes of a model for `decoder_model`."""
    sys.path[:0] = [str(_TESTS), str(_TESTS / "models")]
    import decoder_model

    return decoder_model.Sizes(context=context, elem_type=elem_type, **MODELS[name])


def write_decoder(folder: Path, sizes: Any, bits: int | None = None) -> Path:
    """Write a decoder and its weights into a folder; with `bits`, weights of products are packed."""
    import onnx
    from onnx import numpy_helper

    import decoder_model

    shapes = decoder_model.weight_shapes(sizes)
    largest = max(math.prod(shape) for shape in shapes.values())
    item = np.dtype(sizes.dtype).itemsize
    numbers = folder / "numbers.bin"
    _write_numbers(numbers, largest * item + _STEP * len(shapes), np.dtype(sizes.dtype))
    weights = [
        _external(name, sizes.elem_type, shape, numbers.name, _STEP * at, math.prod(shape) * item)
        for at, (name, shape) in enumerate(shapes.items())
    ]
    tables = [
        numpy_helper.from_array(table, f"table_{name}")
        for name, table in decoder_model.angle_tables(sizes).items()
    ]
    model = decoder_model.decoder(sizes, initializers=[*weights, *tables])
    if bits is not None:
        _pack(model, bits)
    path = folder / "decoder.onnx"
    onnx.save(model, str(path))
    return path


def _write_numbers(path: Path, nbytes: int, dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(_SEED)
    with path.open("wb") as file:
        while file.tell() < nbytes:
            block = rng.standard_normal(_HELD, np.float32) * np.float32(_SPREAD)
            file.write(block.astype(dtype).tobytes())
        file.truncate(nbytes)


def _external(
    name: str, elem_type: int, dims: tuple[int, ...], file: str, offset: int, nbytes: int
) -> onnx.TensorProto:
    import onnx

    tensor = onnx.TensorProto(name=name, data_type=elem_type, dims=dims)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", file), ("offset", offset), ("length", nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _pack(model: onnx.ModelProto, bits: int) -> None:
    """Replace weights of products by codes of `bits` bits, the bytes of the file, with a scale per group."""
    from onnx import helper

    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer if len(tensor.dims) == 2}
    for node in graph.node:
        if node.op_type != "MatMul" or node.input[1] not in weights:
            continue
        codes = weights[node.input[1]]
        length, columns = codes.dims
        places = {entry.key: entry.value for entry in codes.external_data}
        groups = length // GROUP
        scales = helper.make_tensor(
            f"{codes.name}_scales",
            codes.data_type,
            [columns * groups],
            np.full(columns * groups, _SPREAD / 2 ** (bits - 2)),
        )
        graph.initializer.append(scales)
        codes.CopyFrom(
            _external(
                codes.name,
                2,
                (columns, groups, GROUP * bits // 8),
                places["location"],
                int(places["offset"]),
                columns * length * bits // 8,
            )
        )
        node.op_type, node.domain = "MatMulNBits", "com.microsoft"
        node.input.append(scales.name)
        for key, value in (("K", length), ("N", columns), ("bits", bits), ("block_size", GROUP)):
            node.attribute.append(helper.make_attribute(key, value))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
