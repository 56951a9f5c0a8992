"""``QAicApi_pb2``: names, numbers and bytes, with any installed version of protobuf."""

import ast
import copy
import importlib
import pickle
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import QAicApi_pb2 as aic

DATA = Path(__file__).parents[1] / "data" / "qpc"

TYPES = {
    "FLOAT_TYPE": 0,
    "FLOAT_16_TYPE": 1,
    "INT8_Q_TYPE": 2,
    "UINT8_Q_TYPE": 3,
    "INT16_Q_TYPE": 4,
    "INT32_Q_TYPE": 5,
    "INT32_I_TYPE": 6,
    "INT64_I_TYPE": 7,
    "INT8_TYPE": 8,
    "BFLOAT16_TYPE": 11,
    "TYPE_INVALID": 255,
}

FIELDS = {
    "IoDesc": [
        *("1 io_sets", "2 selected_set", "3 program_name", "4 dma_buf", "5 runtime_constants"),
        *("6 pre_process_skip_stages", "7 post_process_skip_stages", "8 allowed_shapes"),
    ],
    "IoSet": ["1 name", "2 bindings"],
    "IoBinding": [
        *("1 name", "2 index", "3 type", "4 dir", "5 quant_scale", "6 quant_offset", "7 dims", "8 size"),
        *("9 dma_buf_info", "10 is_partial_buf_allowed", "20 is_valid"),
    ],
    "IoShapes": ["1 shapes"],
    "TensorShape": ["1 type", "2 dims"],
    "DmaBufInfo": ["1 dma_buf_index", "2 dma_size", "3 io_binding_offset", "4 dma_offset"],
    "DmaBuf": ["1 index", "2 size", "3 dir"],
    "RuntimeConstants": ["1 name", "2 size", "3 offset"],
}


def test_codes():
    assert {name: getattr(aic, name) for name in TYPES} == TYPES
    assert (aic.BUFFER_IO_TYPE_INPUT, aic.BUFFER_IO_TYPE_OUTPUT) == (0, 1)
    assert aic.bufferIoDataTypeEnum.Name(7) == "INT64_I_TYPE"
    assert aic.bufferIoDirectionEnum.Value("BUFFER_IO_TYPE_OUTPUT") == 1


@pytest.mark.parametrize("message", FIELDS)
def test_fields(message):
    described = getattr(aic, message).DESCRIPTOR
    assert [f"{field.number} {field.name}" for field in described.fields] == FIELDS[message]
    assert described.full_name == f"aicapi.{message}"


def test_the_package_is_no_name_of_the_module():
    # A client tries `from QAicApi_pb2 import aicapi` and expects the failure.
    assert not hasattr(aic, "aicapi")
    with pytest.raises(ImportError):
        exec("from QAicApi_pb2 import aicapi")


def described():
    message = aic.IoDesc()
    binding = message.selected_set.bindings.add(
        name="past/key", index=300, type=aic.INT64_I_TYPE, dir=aic.BUFFER_IO_TYPE_OUTPUT, size=1 << 31
    )
    binding.dims.extend([1, -1])
    binding.is_partial_buf_allowed = True
    binding.quant_scale = 0.5
    message.allowed_shapes.add().shapes.add(type=aic.FLOAT_16_TYPE, dims=[2, 3])
    return message


def test_messages_travel():
    message = described()
    parsed = aic.IoDesc()
    parsed.ParseFromString(message.SerializeToString())
    assert parsed == message
    assert parsed.selected_set.bindings[0].size == 1 << 31
    assert list(parsed.allowed_shapes[0].shapes[0].dims) == [2, 3]
    assert pickle.loads(pickle.dumps(message)) == message
    assert copy.deepcopy(message) == message


def test_classes_are_those_of_the_module():
    binding: aic.IoBinding = described().selected_set.bindings[0]
    assert isinstance(binding, aic.IoBinding)
    assert aic.IoBinding.__module__ == "QAicApi_pb2"


def test_a_second_module_of_the_same_messages_does_no_harm(monkeypatch):
    # A client puts another directory first and imports again; other packages contain the same messages.
    monkeypatch.delitem(sys.modules, "QAicApi_pb2")
    again = importlib.import_module("QAicApi_pb2")
    assert again is not aic
    parsed = again.IoDesc.FromString(described().SerializeToString())
    assert parsed.selected_set.bindings[0].name == "past/key"


def test_as_clients_read_a_container():
    import qaicrt

    status, data = qaicrt.Qpc(str(DATA / "s08_dynamic_shapes.qpc")).getIoDescriptor()
    assert status == qaicrt.QStatus.QS_SUCCESS
    assert isinstance(data, bytes)
    described = aic.IoDesc()
    described.ParseFromString(data)
    sizes = {
        aic.FLOAT_TYPE: np.float32,
        aic.FLOAT_16_TYPE: np.float16,
        aic.INT64_I_TYPE: np.int64,
        aic.INT32_I_TYPE: np.int32,
        getattr(aic, "BFLOAT16_TYPE", 11): np.float16,
    }
    bindings = described.selected_set.bindings
    assert [binding.index for binding in bindings] == list(range(len(bindings)))
    assert [binding.dir for binding in bindings] == sorted(binding.dir for binding in bindings)
    for binding in bindings:
        assert binding.size == np.prod(binding.dims) * np.dtype(sizes[binding.type]).itemsize
    assert described.selected_set.name == "default"
    assert len(described.allowed_shapes) == 3
    assert all(len(entry.shapes) == len(bindings) for entry in described.allowed_shapes)


def test_nothing_is_generated_for_one_version():
    source = Path(aic.__file__).read_text()
    assert not re.search(r"ValidateProtobufRuntimeVersion|_USE_C_DESCRIPTORS|serialized_pb", source)


def test_the_stub_names_what_there_is():
    stub = ast.parse(Path(aic.__file__).with_suffix(".pyi").read_text())
    names = {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign)}
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    assert names | set(classes) == set(aic.__all__)
    for name, node in classes.items():
        fields = {entry.target.id for entry in node.body if isinstance(entry, ast.AnnAssign)}
        fields |= {entry.name for entry in node.body if isinstance(entry, ast.FunctionDef)} - {"__init__"}
        assert fields == {field.name for field in getattr(aic, name).DESCRIPTOR.fields}
