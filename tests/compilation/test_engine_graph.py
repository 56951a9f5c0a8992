"""The graph that the engine runs for a program, which it saves for the compiler's list of operations."""

import numpy as np
import onnx
import pytest
from onnx import helper

import rt_programs
from qaic import _core
from session_models import affine, model


def saved(tmp_path, built):
    folder = tmp_path / "engine"
    folder.mkdir()
    path = _core.save_optimized_graph(rt_programs.compiled(tmp_path, built) + "/programqpc.bin", folder)
    assert [entry.name for entry in folder.iterdir()] == [path.name]
    return onnx.load(path, load_external_data=False).graph


def test_the_engines_own_operators_are_seen(tmp_path):
    graph = saved(tmp_path, affine(width=64))
    assert [node.op_type for node in graph.node] == ["FusedGemm"]
    assert [node.name.split(" ")[0] for node in graph.node] == ["fused"]


def test_large_initializers_have_no_values_and_take_no_room(tmp_path):
    large = np.ones((512, 512), np.float32)
    net = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        [("x", "float32", [1, 512])],
        [("y", "float32", [1, 512])],
        {"w": large},
    )
    graph = saved(tmp_path, net)
    assert [(init.name, tuple(init.dims), len(init.raw_data)) for init in graph.initializer] == [
        ("w", large.shape, 0)
    ]
    assert graph.ByteSize() < 1000


def test_a_folder_that_is_missing_is_named(tmp_path):
    path = rt_programs.compiled(tmp_path, affine()) + "/programqpc.bin"
    with pytest.raises(FileNotFoundError) as caught:
        _core.save_optimized_graph(path, tmp_path / "absent")
    assert "absent" in str(caught.value)
