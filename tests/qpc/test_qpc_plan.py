"""Records of the compiler in a container; a forged record only causes an error."""

import json
import math
import re
import shutil

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qaic
import session_models
from qaic.errors import QpcFormatError
from qaic.qpc import Qpc
from qpc_support import DATA, container, program


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A compiled model, and its weights."""
    folder = tmp_path_factory.mktemp("compiled")
    weights = np.random.default_rng(7).random((64, 32), np.float32)
    model = session_models.model(
        [
            helper.make_node("MatMul", ["x", "fc.weight"], ["y"]),
            helper.make_node("Greater", ["y", "limit"], ["m"]),
        ],
        [("x", TensorProto.FLOAT, ["batch", 64])],
        [("y", TensorProto.FLOAT, ["batch", 32]), ("m", TensorProto.BOOL, ["batch", 32])],
        {"fc.weight": weights, "limit": np.float32(16)},
    )
    onnx.save(model, folder / "net.onnx")
    qaic.Session(
        folder / "net.onnx", onnx_define_symbol={"batch": 2}, output_dir=folder / "program", aic_num_cores=4
    )
    return Qpc(folder / "program"), weights


def test_plan_of_a_compiled_model(compiled):
    qpc, _ = compiled
    assert qpc.target == "cpu"
    assert qpc.options == {"aic_num_cores": 4, "onnx_define_symbol": {"batch": 2}}
    assert qpc.plan["inputs"] == [{"name": "x", "dtype": "float32", "dims": [2, 64]}]
    assert [output["dtype"] for output in qpc.plan["outputs"]] == ["float32", "bool"]
    assert qpc.program_info.num_cores == 4
    assert qpc.validate() == []


def test_weights_of_a_compiled_model(compiled):
    qpc, weights = compiled
    assert list(qpc.initializers) == ["fc.weight"]
    found = qpc.initializers["fc.weight"]
    assert found.dtype == np.float32
    assert np.array_equal(found, weights)
    assert np.shares_memory(found, qpc.segments["constants.bin"].data)
    assert "fc.weight" in qpc.initializers
    assert "limit" not in qpc.initializers
    with pytest.raises(KeyError):
        qpc.initializers["limit"]
    assert repr(qpc.initializers) == "<1 initializer over 8192 bytes>"


def test_graph_of_a_compiled_model(compiled):
    qpc, _ = compiled
    model = onnx.load_from_string(qpc.graph.tobytes())
    external = {t.name for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL}
    assert external == set(qpc.initializers)
    assert np.shares_memory(qpc.graph, qpc.segments["network.elf"].data)


def test_the_guide_is_true(compiled, tmp_path, monkeypatch):
    qpc, weights = compiled
    shutil.copytree(qpc.path.parent, tmp_path / "program")
    monkeypatch.chdir(tmp_path)
    guide = (DATA.parents[1] / "docs" / "guide" / "containers.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    # The test has a container of a model with a weight of another name.
    block = re.sub(r"^qaic\.compile\(.*\n", "", block, flags=re.MULTILINE)
    names = {}
    exec(compile(block.replace("dense.weight", "fc.weight"), "containers.md", "exec"), names)
    assert np.array_equal(names["weights"], weights)
    assert names["findings"] == []
    for name in re.findall(r"^\| `(\S+\.(?:json|onnx))` ", guide, re.MULTILINE):
        assert (tmp_path / "descriptors" / name).exists() == name.endswith("json")
    table = guide[guide.index("| attribute |") :]
    for row in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", row):
            getattr(qpc, name)


def with_initializers(*records, constants=bytes(range(64))):
    plan = {"version": 1, "target": "cpu", "initializers": list(records)}
    return Qpc(container(program(constants=constants, plan=plan), alignment=64))


def record(dtype="uint8", dims=(4,), offset=0, size=4, **more):
    return {"name": "w", "dtype": dtype, "dims": list(dims), "offset": offset, "size": size, **more}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, np.dtype(name)) for name in ("int8", "uint16", "int64", "float16", "float64", "complex128")),
        ("bool", np.dtype(bool)),
        ("bfloat16", np.dtype(ml_dtypes.bfloat16)),
        ("float8e4m3fn", np.dtype(ml_dtypes.float8_e4m3fn)),
        ("float8e4m3fnuz", np.dtype(ml_dtypes.float8_e4m3fnuz)),
        ("float8e5m2", np.dtype(ml_dtypes.float8_e5m2)),
        ("float8e5m2fnuz", np.dtype(ml_dtypes.float8_e5m2fnuz)),
        ("float8e8m0", np.dtype(ml_dtypes.float8_e8m0fnu)),
    ],
)
def test_element_types(name, dtype):
    size = 2 * dtype.itemsize
    qpc = with_initializers(record(name, (2, 1), 16, size))
    array = qpc.initializers["w"]
    assert (array.dtype, array.shape) == (dtype, (2, 1))
    assert array.tobytes() == bytes(range(16, 16 + size))
    assert not array.flags.writeable


@pytest.mark.parametrize(("name", "count", "size"), [("int4", 5, 3), ("uint2", 5, 2), ("float4e2m1", 4, 2)])
def test_packed_types_come_as_their_bytes(name, count, size):
    array = with_initializers(record(name, (count,), 1, size)).initializers["w"]
    assert array.dtype == np.uint8
    assert array.tolist() == list(range(1, 1 + size))


def test_scalars_and_empty_arrays():
    assert with_initializers(record("float32", (), 0, 4)).initializers["w"].shape == ()
    assert with_initializers(record("float32", (3, 0), 64, 0)).initializers["w"].shape == (3, 0)


FORGED = [
    record(offset=61),
    record(offset=1 << 70, size=4),
    record(size=1 << 70, dims=(1 << 70,)),
    record(offset=-4),
    record(size=-4, dims=(-4,)),
    record(dims=(-2, -2)),
    record(dims=(3,)),
    record("float32", (3,)),
    record("int4", (3,)),
    record(dims=(0, 1 << 70), size=0),
    record(dims=(1,) * 65, size=1),
    record(dims=(True,) * 4, size=1),
    record(offset=0.5),
    record(offset="0"),
    record(size=None),
    record("string"),
    record("object"),
    record(["float32"]),
    record({"a": 1}),
    record(None),
    {"name": "w"},
    {"name": "w", "dims": "4"},
    {"name": "w", "dims": {"0": 4}, "dtype": "int8", "offset": 0, "size": 4},
]


@pytest.mark.parametrize("forged", FORGED, ids=lambda value: json.dumps(value)[:60])
def test_rejects_forged_initializers(forged):
    initializers = with_initializers(forged).initializers
    assert len(initializers) == 1
    with pytest.raises(QpcFormatError, match="'w'") as caught:
        initializers["w"]
    assert caught.value.code == "qpc.plan"


@pytest.mark.parametrize(
    "plan",
    [
        b"",
        b"{",
        b"[1]",
        b'"text"',
        b"null",
        b"\xff\xfe",
        b'{"a": NaN}',
        b'{"a": 1e9999' + b"9" * 10 + b"}x",
        b"[" * 100_000,
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"options": [], "initializers": []}',
        b'{"options": {}, "initializers": {}}',
        b'{"options": {}, "initializers": [1]}',
        b'{"options": {}, "initializers": [{"name": 3}]}',
    ],
    ids=lambda plan: plan[:40],
)
def test_rejects_forged_plans(plan):
    qpc = Qpc(container(program(plan=plan)))
    with pytest.raises(QpcFormatError) as caught:
        list(map(repr, (qpc.plan, qpc.options, qpc.initializers)))
    assert caught.value.code == "qpc.plan"
    assert repr(qpc)


def test_initializers_may_share_bytes():
    qpc = with_initializers(
        {**record(), "name": "a"},
        {**record("float32", (1,)), "name": "b"},
        constants=np.float32(math.pi).tobytes(),
    )
    assert np.shares_memory(qpc.initializers["a"], qpc.initializers["b"])
    assert qpc.initializers["b"] == np.float32(math.pi)
