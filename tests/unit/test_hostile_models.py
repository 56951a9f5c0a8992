"""Models that are made to cause harm: endless functions, and data in files outside the model."""

import copy
import json
import os
import struct
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qaic
import qpc_support
import session_models
from qaic import _core
from qaic.compiler.driver import compile_model
from qaic.compiler.frontend import check_model
from qaic.compiler.frontend.files.content_digest import DigestIndex
from qaic.errors import CompileError, DeviceError, QpcFormatError
from qaic.options.table import CompileOptions

X = np.zeros(200, np.float32)
OPSETS = [helper.make_opsetid("d", 1), helper.make_opsetid("", session_models.OPSET)]


def with_functions(bodies):
    """``y = f0(x)``; ``bodies`` is the list of nodes of f0, f1, ..."""
    built = session_models.model(
        [helper.make_node("f0", ["x"], ["y"], domain="d")], [("x", "float32", [2])], [("y", "float32", [2])]
    )
    built.opset_import.append(OPSETS[0])
    built.functions.extend(
        helper.make_function("d", f"f{number}", ["a"], ["b"], nodes, OPSETS)
        for number, nodes in enumerate(bodies)
    )
    return built


def call(name, source, target):
    return helper.make_node(name, [source], [target], domain="d" if name.startswith("f") else "")


def twice(name):
    return [call(name, "a", "t"), call(name, "t", "b")]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    "bodies",
    [
        [[call("f0", "a", "b")]],
        [[call("f1", "a", "b")], [call("f0", "a", "b")]],
        [[call("Neg", "a", "b")], twice("f2"), [call("f1", "a", "b")]],
    ],
    ids=["itself", "each other", "unused"],
)
def test_function_that_calls_itself_is_refused(tmp_path, bodies, half):
    path = session_models.save(tmp_path, with_functions(bodies))
    with pytest.raises(CompileError, match=r"function 'f\d' of domain 'd': found a call of itself"):
        qaic.Session(path, convert_to_fp16=half)


@pytest.mark.parametrize("half", [False, True])
def test_functions_that_double_at_each_level_are_refused_unexpanded(tmp_path, half):
    bodies = [twice(f"f{level + 1}") for level in range(2000)] + [[call("Neg", "a", "b")]]
    with pytest.raises(CompileError, match="more than 1000000 nodes") as caught:
        qaic.Session(session_models.save(tmp_path, with_functions(bodies)), convert_to_fp16=half)
    assert caught.value.code == "compile.graph_too_large"


@pytest.mark.parametrize("half", [False, True])
def test_functions_that_share_others_work(tmp_path, half):
    bodies = [[*twice("f1"), call("f2", "a", "unused")], twice("f2"), [call("Neg", "a", "b")]]
    path = session_models.save(tmp_path, with_functions(bodies))
    x = np.float32([1, -2])
    np.testing.assert_array_equal(qaic.Session(path, convert_to_fp16=half).run({"x": x})["y"], x)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("domain", "name"), [("", "Neg"), ("ai.onnx", "Relu"), ("ai.onnx.ml", "Scaler")])
def test_function_that_redefines_an_operator_is_refused(tmp_path, domain, name, half):
    built = with_functions([[call("Neg", "a", "b")]])
    built.functions.append(helper.make_function(domain, name, ["a"], ["b"], [call("Abs", "a", "b")], OPSETS))
    with pytest.raises(
        CompileError, match=f"function '{name}' .*: found a definition of an operator"
    ) as caught:
        qaic.Session(session_models.save(tmp_path, built), convert_to_fp16=half)
    assert caught.value.code == "compile.invalid_model"


@pytest.mark.parametrize("half", [False, True])
def test_two_functions_of_one_name_are_refused(tmp_path, half):
    built = with_functions([[call("Neg", "a", "b")]])
    built.functions.append(helper.make_function("d", "f0", ["a"], ["b"], [call("Abs", "a", "b")], OPSETS))
    with pytest.raises(CompileError, match="function 'f0' of domain 'd': found two definitions"):
        qaic.Session(session_models.save(tmp_path, built), convert_to_fp16=half)


# --- data in files ------------------------------------------------------------------------------------


def external(location, elements=200):
    entries = {"location": location, "offset": "0", "length": str(4 * elements)}
    return TensorProto(
        name="w",
        data_type=TensorProto.FLOAT,
        dims=[elements],
        data_location=TensorProto.EXTERNAL,
        external_data=[onnx.StringStringEntryProto(key=key, value=text) for key, text in entries.items()],
    )


def in_constant(tensor):
    nodes = [
        helper.make_node("Constant", [], ["k"], value=tensor),
        helper.make_node("Add", ["x", "k"], ["y"]),
    ]
    return session_models.model(nodes, [("x", "float32", [200])], [("y", "float32", [200])])


def in_branch(tensor):
    value = session_models.value
    used = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["s"])], "used", [], [value("s", "float32", [200])], [tensor]
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["e"])], "other", [], [value("e", "float32", [200])]
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=used, else_branch=other)
    return session_models.model(
        [node], [("c", "bool", []), ("x", "float32", [200])], [("y", "float32", [200])]
    )


def in_function(tensor):
    nodes = [
        helper.make_node("Constant", [], ["k"], value=tensor),
        helper.make_node("Add", ["a", "k"], ["b"]),
    ]
    built = with_functions([nodes])
    for value in (*built.graph.input, *built.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 200
    return built


@pytest.mark.parametrize("place", [in_constant, in_branch, in_function])
@pytest.mark.parametrize("location", ["/etc/passwd", "../data.bin", "link.bin"])
def test_external_data_of_inner_tensors_stays_in_the_folder(tmp_path, monkeypatch, place, location):
    # The engine would find the file, because it searches the working folder.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.bin").write_bytes(X.tobytes())
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "link.bin").symlink_to("../data.bin")
    with pytest.raises(CompileError, match=r"tensor 'w' in .*: found location") as caught:
        qaic.Session(session_models.save(folder, place(external(location))))
    assert caught.value.code == "compile.external_data"


@pytest.mark.parametrize("place", [in_constant, in_branch, in_function])
def test_external_data_of_inner_tensors_is_never_sought_elsewhere(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.bin").write_bytes(X.tobytes())
    folder = tmp_path / "inner"
    folder.mkdir()
    for location in ("data.bin", "*/_ORT_MEM_ADDR_/*"):
        with pytest.raises(FileNotFoundError, match="inner"):
            qaic.Session(session_models.save(folder, place(external(location))))


@pytest.mark.parametrize("place", [in_constant, in_branch, in_function])
@pytest.mark.parametrize(
    ("elements", "text"), [(199, "found 796 bytes of data, expected 800"), (201, "expected a range inside")]
)
def test_external_data_of_inner_tensors_has_their_size(tmp_path, place, elements, text):
    (tmp_path / "data.bin").write_bytes(X.tobytes())
    tensor = external("data.bin", elements)
    tensor.dims[0] = 200
    with pytest.raises(CompileError, match=text):
        qaic.Session(session_models.save(tmp_path, place(tensor)))


@pytest.mark.parametrize("place", [in_constant, in_branch, in_function])
def test_inner_tensor_without_a_location_is_refused(tmp_path, place):
    tensor = external("data.bin")
    del tensor.external_data[:]
    with pytest.raises(CompileError, match=r"tensor 'w' in .*: found external data without a location"):
        qaic.Session(session_models.save(tmp_path, place(tensor)))


def test_external_data_in_functions_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(check_model, "MOST_INLINE_BYTES", 799)
    (tmp_path / "data.bin").write_bytes(X.tobytes())
    with pytest.raises(CompileError, match="more than 799 bytes in nested graphs and functions") as caught:
        qaic.Session(session_models.save(tmp_path, in_function(external("data.bin"))))
    assert caught.value.code == "compile.graph_too_large"


def in_main_graph(tensor):
    built = session_models.model(
        [helper.make_node("Add", ["x", "w"], ["y"])], [("x", "float32", [200])], [("y", "float32", [200])]
    )
    built.graph.initializer.append(tensor)
    return built


@pytest.mark.parametrize("place", [in_main_graph, in_constant, in_branch, in_function])
@pytest.mark.parametrize(
    "location", ["data.bin", "./data.bin", "constants.bin", "/etc/passwd", "*/_ORT_MEM_ADDR_/*"]
)
def test_container_cannot_make_the_engine_read_files(tmp_path, monkeypatch, capfd, place, location):
    built = place(external(location))
    harmless = onnx.ModelProto()
    harmless.CopyFrom(built)
    del harmless.functions[:], harmless.graph.initializer[:], harmless.graph.node[:]
    harmless.graph.node.append(helper.make_node("Identity", ["x"], ["y"]))
    original = qaic.Qpc(compile_model(harmless, CompileOptions(), {}))
    sections = {
        "metadata_fb": bytes(original._core.elf_section("metadata_fb")),
        "openqaic_graph": built.SerializeToString(),
        "openqaic_plan": bytes(original._core.elf_section("openqaic_plan")),
    }
    elf = bytes(_core.encode_elf(list(sections.items())))
    forged = tmp_path / "programqpc.bin"
    forged.write_bytes(
        qpc_support.container(
            [
                (name, elf if name == "network.elf" else segment.data.tobytes(), segment.offset)
                for name, segment in original.segments.items()
            ],
            alignment=64,
        )
    )
    monkeypatch.chdir(tmp_path)
    for name in ("data.bin", "constants.bin"):
        (tmp_path / name).write_bytes(X.tobytes())
    with pytest.raises(DeviceError) as caught:
        qaic.Session(forged).run({"x": X})
    # An emulated card reports the reason only in the log.
    assert f'tensor `w` has external data in "{location}"' in f"{caught.value} {capfd.readouterr().err}"


def shifted(program, shift):
    """The container of a program, with moved weights in ``constants.bin`` and in the plan."""
    original = qaic.Qpc(program)
    plan = copy.deepcopy(original.plan)
    for record in plan["initializers"]:
        record["offset"] += shift
    sections = {
        "metadata_fb": bytes(original._core.elf_section("metadata_fb")),
        "openqaic_graph": bytes(original._core.elf_section("openqaic_graph")),
        "openqaic_plan": json.dumps(plan).encode(),
    }
    segments = {name: segment.data.tobytes() for name, segment in original.segments.items()}
    segments["network.elf"] = bytes(_core.encode_elf(list(sections.items())))
    constants = segments["constants.bin"] = bytes(shift) + segments["constants.bin"]
    segments["constantsdesc.bin"] = struct.pack("<QQBB6x", len(constants), 0, 0, 0)
    for name in [name for name in segments if name.endswith(".crc")]:
        del segments[name]
    offsets = {"constants.bin": len(constants)}
    full = [(name, data, offsets.get(name, 0)) for name, data in segments.items()]
    return qpc_support.container(full, alignment=64)


@pytest.mark.parametrize(
    ("shift", "code"),
    [(0, None), (64, None), (1, "qpc.initializer_alignment"), (4, "qpc.initializer_alignment")],
)
def test_weights_at_an_odd_offset_are_refused(tmp_path, shift, code):
    values = np.arange(512, dtype=np.float32)
    built = session_models.model(
        [helper.make_node("Add", ["x", "w"], ["y"])], [("x", "float32", [512])], [("y", "float32", [512])]
    )
    built.graph.initializer.append(onnx.numpy_helper.from_array(values, "w"))
    path = tmp_path / "programqpc.bin"
    path.write_bytes(shifted(compile_model(built, CompileOptions(), {}), shift))
    assert [finding.code for finding in qaic.Qpc(path).validate()] == ([code] if code else [])
    if code is None:
        x = np.ones(512, np.float32)
        np.testing.assert_array_equal(qaic.Session(path).run({"x": x})["y"], x + values)
        return
    with pytest.raises(QpcFormatError, match="compile the model again") as caught:
        qaic.Session(path).setup()
    assert caught.value.code == code


# --- files that change --------------------------------------------------------------------------------


def test_model_file_that_is_cut_off_while_it_is_walked_is_an_error(tmp_path):
    # Runs in a separate process, because a mapped file would end it with a bus error.
    nodes = [helper.make_node("Neg", [f"v{turn}"], [f"v{turn + 1}"]) for turn in range(3000)]
    built = session_models.model(nodes, [("v0", "float32", [2])], [("v3000", "float32", [2])])
    code = """
import os, sys, qaic
from qaic.compiler.frontend.files import tensor_record

walk = tensor_record.fields
def cut(buffer, start, end):
    tensor_record.fields = walk
    os.truncate(sys.argv[1], 0)
    return walk(buffer, start, end)
tensor_record.fields = cut
try:
    qaic.Session(sys.argv[1])
except qaic.errors.CompileError as error:
    print(error.code)
"""
    path = session_models.save(tmp_path, built)
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "compile.model_changed"), done.stderr


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_cached_program_that_is_no_file_is_never_waited_for(tmp_path, monkeypatch, make):
    monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / "cache"))
    path = session_models.save(tmp_path, session_models.affine())
    qaic.Session(path)
    (cached,) = (tmp_path / "cache").rglob("programqpc.bin")
    cached.unlink()
    make(cached)
    code = """
import sys, qaic
try:
    print(len(qaic.Session(sys.argv[1]).model_input_shape_dict))
except IsADirectoryError:
    print("folder")
"""
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "1" if make is os.mkfifo else "folder"), done.stderr


def test_index_of_the_cache_that_is_nested_too_deeply_counts_as_absent(tmp_path):
    index = DigestIndex(tmp_path)
    path = session_models.save(tmp_path, session_models.affine())
    index._entry(path).write_text("[" * 100_000)
    assert index.lookup(path) is None
