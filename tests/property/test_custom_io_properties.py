"""Custom I/O through container and runtime, compared bit by bit with numpy."""

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from qaic import _core
from qaic.options.files.custom_io import CustomIoList
from rt_programs import Client, compiled
from session_models import model

SHAPES = st.one_of(
    st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
    st.tuples(*[st.integers(1, 5)] * 4),
    st.tuples(st.integers(1, 3), st.integers(30, 70)),
)
SCALES = st.sampled_from([0.5, 0.1, 1.0, 3.0, 1e-3, 7.25e5]).map(np.float32)


@st.composite
def entries(draw, name, rank):
    """One entry of the file, as a mapping."""
    entry = {"IOName": name}
    if rank == 4 and draw(st.booleans()):
        entry["Layout"] = draw(st.sampled_from(["NHWC", "NCHW"]))
    precision = draw(st.sampled_from([None, "float", "float16", "bfloat16", "int8", "mxint8"]))
    if precision is not None:
        entry["Precision"] = precision
    if precision == "int8":
        entry |= {"Scale": float(draw(SCALES)), "Offset": draw(st.integers(-128, 127))}
    return entry


def blocks_of(values):
    """MXINT8 blocks along the last dimension, as bytes: the encoder of OCP Microscaling, in float64."""
    *outer, columns = values.shape
    count = -(-columns // 32)
    padded = np.zeros((*outer, count * 32))
    padded[..., :columns] = values
    rows = padded.reshape(-1, 32)
    made = np.zeros((len(rows), 33), np.uint8)
    for row, out in zip(rows, made, strict=True):
        if not np.isfinite(row).all():
            out[0] = 255
            continue
        largest = np.abs(row).max()
        shared = -127 if largest == 0 else int(np.clip(np.frexp(largest)[1] - 1, -127, 127))
        elements = np.clip(np.rint(np.ldexp(row, -shared) * 64), -127, 127)
        out[0] = shared + 127
        out[1:] = elements.astype(np.int8).view(np.uint8)
    return made.reshape(*outer, count * 33)


def values_of(raw, columns):
    """Decode blocks to float32."""
    *outer, size = raw.shape
    rows = raw.reshape(-1, 33)
    scales = np.ldexp(1.0, rows[:, :1].astype(int) - 127)
    scales[rows[:, 0] == 255] = np.nan
    made = rows[:, 1:].view(np.int8) / 64 * scales
    return made.reshape(*outer, size // 33 * 32)[..., :columns].astype(np.float32)


def border_form(shape, entry, model_type):
    """Shape before conversion to blocks, and shape and dtype at the low-level interface."""
    if entry.get("Layout") == "NHWC":
        shape = tuple(shape[at] for at in (0, 2, 3, 1))
    precision = entry.get("Precision")
    if precision == "mxint8":
        return shape, (*shape[:-1], -(-shape[-1] // 32) * 33), np.uint8
    types = {"float": np.float32, "float16": np.float16, "bfloat16": np.uint16, "int8": np.int8}
    return shape, shape, types.get(precision, model_type)


def to_model(array, entry, shape, model_type):
    """Return the value that the model reads."""
    precision = entry.get("Precision")
    if precision == "bfloat16":
        array = array.view(ml_dtypes.bfloat16)
    if precision == "int8":
        array = (array.astype(np.float32) - np.float32(entry["Offset"])) * np.float32(entry["Scale"])
    if precision == "mxint8":
        array = values_of(array, border_form(shape, entry, model_type)[0][-1])
    with np.errstate(over="ignore"):
        array = array.astype(np.float32).astype(model_type)
    return np.transpose(array, (0, 3, 1, 2)) if entry.get("Layout") == "NHWC" else array


def to_border(array, entry):
    """Return the value that the caller receives for a value of the model."""
    if entry.get("Layout") == "NHWC":
        array = np.ascontiguousarray(np.transpose(array, (0, 2, 3, 1)))
    precision = entry.get("Precision")
    single = array.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        if precision == "int8":
            summed = np.rint(single / np.float32(entry["Scale"]) + np.float32(entry["Offset"]))
            # NaN is not above the lower bound.
            return np.minimum(np.where(summed > -128, summed, -128), 127).astype(np.int8)
        if precision == "mxint8":
            return blocks_of(single.astype(np.float64))
        if precision == "bfloat16":
            return single.astype(ml_dtypes.bfloat16).view(np.uint16)
        return single.astype({"float": np.float32, "float16": np.float16}.get(precision, array.dtype))


def floats(rng, shape, dtype):
    """Ordinary values, large and tiny values, and ties of the quantization."""
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 7, shape)
    values = np.where(rng.random(shape) < 0.2, rng.integers(-200, 200, shape) / 2, values)
    with np.errstate(over="ignore"):
        return values.astype(dtype)


def border_values(rng, shape, entry, model_type):
    _, border, dtype = border_form(shape, entry, model_type)
    if np.dtype(dtype) == np.int8:
        return rng.integers(-128, 128, border, dtype=np.int8)
    if dtype is np.uint16:
        return floats(rng, border, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    if dtype is np.uint8:
        before = border_form(shape, entry, model_type)[0]
        return blocks_of(floats(rng, before, np.float64))
    return floats(rng, border, dtype)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("custom_io")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QAIC_CACHE_DIR", str(made / "cache"))
        yield made


def low_level(folder, net, entries_, **options):
    """Compile for the low-level interface, which transfers the bytes unchanged; returns a caller."""
    path = compiled(folder, net, custom_io_list_file=CustomIoList().parse(entries_), **options)
    client = Client(path)
    outputs = json.loads(_core.Qpc(f"{path}/programqpc.bin").network_desc_json())["outputs"]
    (result,) = [binding["io_transformed"]["dims"] for binding in outputs]

    def run(given_values, dtype):
        found = np.empty(result, dtype)
        client.infer(client.exec_obj(), [(0, given_values), (1, found)])
        return found

    return run


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=SHAPES, half=st.booleans(), opset=st.sampled_from([13, 17, 18, 21]))
def test_every_conversion_is_exact(folder, data, shape, half, opset):
    dtype = np.dtype(np.float16 if half else np.float32)
    wanted = [data.draw(entries(name, len(shape))) for name in ("x", "y")]
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    net = model(
        [helper.make_node("Neg", ["x"], ["y"])], [("x", dtype, shape)], [("y", dtype, shape)], opset=opset
    )
    given_values = border_values(rng, shape, wanted[0], dtype)
    expected = to_border(-to_model(given_values, wanted[0], shape, dtype), wanted[1])
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("QAIC_CPU_FAMILY", "ai200")
        found = low_level(folder, net, wanted, aic_hw_version="ai200")(given_values, expected.dtype)
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()
