import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler_oracle import FLOAT, info, lowered, model_of, node, run, whole
from lowered_program import lower_program
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.frontend.files import onnx_file
from qaic.compiler.ir.constants.packed import converted
from qaic.compiler.ir.constants.weights import read_all
from qaic.errors import CompileError
from qaic.options.table import CompileOptions


def saved(model, folder, **external):
    path = folder / "model.onnx"
    onnx.save(model, path, **external)
    return path


def add_model(weight, name="w"):
    tensor = weight if isinstance(weight, TensorProto) else numpy_helper.from_array(weight, name)
    shape = list(tensor.dims)
    return model_of(
        [node("Cast", [tensor.name], ["f"], to=FLOAT), node("Add", ["x", "f"], ["y"])],
        [info("x", shape)],
        [info("y", shape)],
        [tensor],
        opset=21,
    )


def read_weight(model, name="w"):
    with onnx_file.open_bytes(model.SerializeToString()) as source:
        return source.weights[name], read_all(source.weights[name].source)


def test_large_payloads_are_not_in_the_skeleton_and_small_ones_are(tmp_path):
    big, small = np.arange(4096, dtype=np.float32), np.arange(8, dtype=np.float32)
    model = model_of(
        [
            node("Add", ["x", "big"], ["a"]),
            node("Mul", ["x", "x"], ["b"]),
            node("Concat", ["a", "b", "s"], ["y"], axis=0),
        ],
        [info("x", [4096])],
        [info("y", [8200])],
        [("big", big), ("s", small)],
    )
    with onnx_file.open_model(saved(model, tmp_path)) as source:
        assert len(source.proto_bytes) < 1024
        assert list(source.weights) == ["big"]
        assert read_all(source.weights["big"].source) == big.tobytes()
        parsed = source.parse()
        assert [t.name for t in parsed.graph.initializer] == ["s"]
        assert list(parsed.graph.node) == list(model.graph.node)


@pytest.mark.parametrize(
    ("elem_type", "values"),
    [
        (TensorProto.FLOAT, np.linspace(-3, 3, 600)),
        (TensorProto.DOUBLE, np.linspace(-3, 3, 600)),
        (TensorProto.FLOAT16, np.linspace(-3, 3, 600)),
        (TensorProto.INT8, np.arange(1500) % 256 - 128),
        (TensorProto.UINT16, np.arange(600) * 100),
        (TensorProto.INT32, np.arange(600) - 300),
        (TensorProto.INT64, np.arange(600) - 300),
        (TensorProto.UINT64, np.arange(1500)),
        (TensorProto.BOOL, np.arange(1500) % 2),
        (TensorProto.BFLOAT16, np.arange(1500) % 16),
    ],
)
def test_number_fields_are_decoded_like_onnx_does(elem_type, values):
    tensor = helper.make_tensor("w", elem_type, [len(values)], values, raw=False)
    assert not tensor.HasField("raw_data")
    weight, data = read_weight(add_model(tensor))
    assert weight.elem_type == elem_type
    assert data == numpy_helper.to_array(tensor).tobytes()


def test_sub_byte_weights_stay_in_the_graph_packed():
    values = np.arange(4096) % 16 - 8
    tensor = helper.make_tensor("w", TensorProto.INT4, [4096], values, raw=False)
    model = add_model(tensor)
    # onnxruntime 1.22 has no cast from int4, and reads it here.
    model.graph.node[0].CopyFrom(node("DequantizeLinear", ["w", "one"], ["f"]))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1), "one"))
    program = lowered(model)
    assert program.weights == {}
    out = run(whole(program), {"x": np.zeros(4096, np.float32)})["y"]
    np.testing.assert_array_equal(out, values)


def test_large_constant_nodes_become_weights():
    table = np.arange(1000, dtype=np.float32)
    model = model_of(
        [
            node("Constant", [], ["c"], value=numpy_helper.from_array(table, "anything")),
            node("Add", ["x", "c"], ["y"]),
        ],
        [info("x", [1000])],
        [info("y", [1000])],
    )
    program = lowered(model)
    assert list(program.weights) == ["c"]
    assert [n.op_type for n in program.model.graph.node] == ["Add"]
    x = np.ones(1000, np.float32)
    np.testing.assert_array_equal(run(whole(program), {"x": x})["y"], table + 1)


def test_weight_that_is_an_output_is_kept():
    table = np.arange(1000, dtype=np.float32)
    model = model_of(
        [node("Constant", [], ["c"], value=numpy_helper.from_array(table)), node("Relu", ["x"], ["y"])],
        [info("x", [1])],
        [info("y", [1]), info("c", [1000])],
    )
    np.testing.assert_array_equal(run(whole(lowered(model)), {"x": np.ones(1, np.float32)})["c"], table)


def test_initializers_listed_as_inputs_are_constants():
    w = np.ones(600, np.float32)
    model = model_of(
        [node("Add", ["x", "w"], ["a"]), node("Add", ["a", "s"], ["y"])],
        [info("x", [600]), info("w", [600]), info("s", [1])],
        [info("y", [600])],
        [("w", w), ("s", np.float32([1]))],
    )
    model.ir_version = 3
    program = lowered(model)
    assert [edge.name for edge in program.inputs] == ["x"]
    np.testing.assert_array_equal(run(whole(program), {"x": w})["y"], w + 2)


def test_unused_initializers_are_dropped():
    model = model_of(
        [node("Relu", ["x"], ["y"])], [info("x", [1])], [info("y", [1])], [("w", np.ones(5000, np.float32))]
    )
    assert lowered(model).weights == {}


def test_texts_of_the_exporter_are_dropped_and_model_properties_kept():
    model = model_of([node("Relu", ["x"], ["y"], doc_string="/home/me")], [info("x", [1])], [info("y", [1])])
    model.doc_string = "/home/me"
    model.graph.node[0].metadata_props.add(key="trace", value="/home/me/net.py")
    model.metadata_props.add(key="author", value="someone")
    text = lowered(model).model.SerializeToString()
    assert b"/home/me" not in text
    assert b"someone" in text


def external(tmp_path, count=3):
    arrays = {f"w{i}": np.full(500, i, np.float32) for i in range(count)}
    nodes = [node("Add", [f"a{i}", f"w{i}"], [f"a{i + 1}"]) for i in range(count)]
    model = model_of(nodes, [info("a0", [500])], [info(f"a{count}", [500])], list(arrays.items()))
    return saved(model, tmp_path, save_as_external_data=True, location="w.data", size_threshold=0), arrays


def change_external(path, name, **entries):
    model = onnx.load(path, load_external_data=False)
    tensor = next(t for t in model.graph.initializer if t.name == name)
    known = {e.key: e for e in tensor.external_data}
    for key, value in entries.items():
        (known.get(key) or tensor.external_data.add(key=key)).value = value
    path.write_bytes(model.SerializeToString())


def test_external_data_is_read_from_its_place(tmp_path):
    path, arrays = external(tmp_path)
    with onnx_file.open_model(path) as source:
        assert [file.path.name for file in source.files] == ["model.onnx", "w.data"]
        for name, array in arrays.items():
            assert read_all(source.weights[name].source) == array.tobytes()


def test_small_external_data_is_taken_into_the_graph(tmp_path):
    model = model_of(
        [node("Reshape", ["x", "shape"], ["y"])],
        [info("x", [2, 3])],
        [info("y", None)],
        [("shape", np.int64([3, 2]))],
    )
    path = saved(model, tmp_path, save_as_external_data=True, location="w.data", size_threshold=0)
    with onnx_file.open_model(path) as source:
        assert source.weights == {}
        (shape,) = source.parse().graph.initializer
        np.testing.assert_array_equal(numpy_helper.to_array(shape), [3, 2])


def outside(name, array, folder, offset=64):
    """Write an array to a separate file, and describe it."""
    (folder / f"{name}.data").write_bytes(bytes(offset) + array.tobytes() + bytes(32))
    tensor = numpy_helper.from_array(array, name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": f"{name}.data", "offset": offset, "length": array.nbytes}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def test_external_constants_of_the_main_graph_are_weights_or_stay_when_small(tmp_path):
    """Exporters write each constant above 1 KB to a separate file, also those in attributes of nodes."""
    large, small = np.arange(1000, dtype=np.int64), np.int64([0])
    nodes = [
        node("Constant", [], ["c"], value=outside("c", large, tmp_path)),
        node("Constant", [], ["axis"], value=outside("axis", small, tmp_path)),
        node("Add", ["x", "c"], ["s"]),
        node("ReduceSum", ["s", "axis"], ["y"], keepdims=0),
    ]
    integers = TensorProto.INT64
    model = model_of(nodes, [info("x", [1000], integers)], [info("y", [], integers)])
    with onnx_file.open_model(saved(model, tmp_path)) as source:
        assert len(source.proto_bytes) < 1024
        assert [file.path.name for file in source.files] == ["model.onnx", "c.data", "axis.data"]
        assert source.weights["c"].source.offset == 64
        program = lower_program(source, CompileOptions(), Progress("test"))
        x = np.arange(1000)[::-1].copy()
        assert run(whole(program), {"x": x})["y"] == 999_000


def test_external_constants_are_streamed_whatever_their_size(tmp_path):
    """A sparse file replaces a payload that is larger than memory."""
    tensor = outside("c", np.zeros(8, np.float32), tmp_path)
    dims = [1 << 20, 1 << 14]
    del tensor.dims[:]
    tensor.dims.extend(dims)
    tensor.external_data[1].value, tensor.external_data[2].value = "0", str(1 << 36)
    os.truncate(tmp_path / "c.data", 1 << 36)
    nodes = [node("Constant", [], ["c"], value=tensor), node("MatMul", ["x", "c"], ["y"])]
    path = saved(model_of(nodes, [info("x", [1, 1 << 20])], [info("y", [1, 1 << 14])]), tmp_path)
    with onnx_file.open_model(path) as source:
        program = lower_program(source, CompileOptions(), Progress("test"))
    assert program.weights["c"].source.nbytes == 1 << 36


def test_external_data_is_read_in_attributes_branches_functions_and_sparse_tensors(tmp_path):
    values = {name: np.float32([index, 10 * index, 100]) for index, name in enumerate("abcde", 1)}

    def tensor(name):
        return outside(name, values[name], tmp_path)

    then = helper.make_graph(
        [node("Constant", [], ["k"], value=tensor("b")), node("Add", ["k", "a"], ["s"])],
        "then",
        [],
        [info("s", [3])],
        [tensor("a")],
    )
    other = helper.make_graph([node("Identity", ["x"], ["e"])], "other", [], [info("e", [3])])
    body = [node("Constant", [], ["k"], value=tensor("c")), node("Add", ["v", "k"], ["w"])]
    function = helper.make_function("local", "shifted", ["v"], ["w"], body, [helper.make_opsetid("", 17)])
    indices = outside("i", np.int64([0, 2, 4]), tmp_path)
    sparse = helper.make_sparse_tensor(tensor("d"), indices, [5])
    nodes = [
        node("If", ["q"], ["f"], then_branch=then, else_branch=other),
        node("shifted", ["f"], ["g"], domain="local"),
        node("ConstantOfShape", ["n"], ["h"], value=outside("z", np.float32([7]), tmp_path)),
        node("Constant", [], ["p"], sparse_value=sparse),
        node("Concat", ["g", "h", "p"], ["y"], axis=0),
    ]
    inputs = [info("x", [3]), info("q", [], TensorProto.BOOL)]
    model = model_of(nodes, inputs, [info("y", [10])], [("n", np.int64([2]))], functions=[function])
    with onnx_file.open_model(saved(model, tmp_path)) as source:
        assert len(source.files) == 7
        program = lower_program(source, CompileOptions(), Progress("test"))
    found = run(whole(program), {"x": np.zeros(3, np.float32), "q": np.array(True)})["y"]
    expected = values["a"] + values["b"] + values["c"]
    np.testing.assert_array_equal(found, [*expected, 7, 7, 4, 0, 40, 0, 100])


def test_external_data_in_attributes_of_a_model_in_memory_is_refused(tmp_path):
    constant = node("Constant", [], ["c"], value=outside("c", np.zeros(2000, np.float32), tmp_path))
    model = model_of([constant, node("Add", ["x", "c"], ["y"])], [info("x", [2000])], [info("y", [2000])])
    with pytest.raises(CompileError, match=r"tensor 'c' in node '' .*in a model that is not a file"):
        onnx_file.open_bytes(model.SerializeToString())


@pytest.mark.parametrize("elem_type", [TensorProto.STRING, 99])
def test_external_data_of_a_type_without_bytes_is_refused(tmp_path, elem_type):
    tensor = outside("c", np.zeros(4, np.float32), tmp_path)
    tensor.data_type = elem_type
    constant = node("Constant", [], ["c"], value=tensor)
    model = model_of([constant, node("Add", ["x", "c"], ["y"])], [info("x", [4])], [info("y", [4])])
    with pytest.raises(CompileError, match="expected a type of numbers"):
        onnx_file.open_model(saved(model, tmp_path))


def test_two_constants_of_one_name_are_refused(tmp_path):
    arrays = [outside(name, np.zeros(2000, np.float32), tmp_path) for name in ("a", "b")]
    nodes = [node("Constant", [], ["c"], value=array) for array in arrays]
    model = model_of([*nodes, node("Add", ["x", "c"], ["y"])], [info("x", [2000])], [info("y", [2000])])
    with pytest.raises(CompileError, match="two constants of that name"):
        onnx_file.open_model(saved(model, tmp_path))


@pytest.mark.parametrize("location", ["/etc/passwd", "../w.data", "sub/../../w.data", "", "a\0b"])
def test_external_data_outside_the_folder_is_refused(tmp_path, location):
    folder = tmp_path / "inner"
    folder.mkdir()
    path, _ = external(folder)
    (tmp_path / "w.data").write_bytes(bytes(6000))
    change_external(path, "w1", location=location)
    with pytest.raises(CompileError, match="'w1'") as caught:
        onnx_file.open_model(path)
    assert caught.value.code == "compile.external_data"


def test_external_data_behind_a_link_that_leaves_the_folder_is_refused(tmp_path):
    folder = tmp_path / "inner"
    folder.mkdir()
    path, _ = external(folder)
    (folder / "w.data").rename(tmp_path / "elsewhere")
    (folder / "w.data").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CompileError, match="to a file outside the model's folder"):
        onnx_file.open_model(path)


def test_links_into_one_folder_of_blobs_are_followed(tmp_path):
    """The layout of model hubs: the model and its data are links to files in one other folder."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    path, arrays = external(blobs)
    path.rename(blobs / "0a1b")
    (blobs / "w.data").rename(blobs / "2c3d")
    (snapshot / "model.onnx").symlink_to("../blobs/0a1b")
    (snapshot / "w.data").symlink_to("../blobs/2c3d")
    with onnx_file.open_model(snapshot / "model.onnx") as source:
        assert read_all(source.weights["w1"].source) == arrays["w1"].tobytes()


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"offset": "5000"}, "bytes 5000 to 7000"),
        ({"offset": "-1"}, "offset '-1'"),
        ({"length": "1e3"}, "length '1e3'"),
        ({"length": "1996"}, "expected 2000 bytes"),
        ({"offset": "99999999999999999999"}, "offset"),
    ],
)
def test_external_range_that_makes_no_sense_is_refused(tmp_path, entries, text):
    path, _ = external(tmp_path)
    change_external(path, "w1", **entries)
    with pytest.raises(CompileError, match=text):
        onnx_file.open_model(path)


def test_missing_external_file_is_named(tmp_path):
    path, _ = external(tmp_path)
    (tmp_path / "w.data").unlink()
    with pytest.raises(FileNotFoundError, match=r"w\.data"):
        onnx_file.open_model(path)


def test_external_data_of_a_model_in_memory_is_refused(tmp_path):
    path, _ = external(tmp_path)
    with pytest.raises(CompileError, match="pass the path"):
        onnx_file.open_bytes(path.read_bytes())


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (b"PK\x03\x04rest", "zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"<!doctype html>", "HTML"),
        (b"hello world, this is a text", "not a protobuf message"),
        (b"\x7c\xcd\xa1\x00" + bytes(100), "compiled program container"),
        (b"\x08\x08", "without a graph"),
        (bytes(64), "not a protobuf message"),
    ],
)
def test_other_files_have_errors_of_their_own(tmp_path, content, found):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(CompileError, match=found) as caught, onnx_file.open_model(path) as source:
        source.parse()
    assert caught.value.code == "compile.not_onnx"
    assert str(path) in str(caught.value)


def test_folder_and_fifo_are_refused_without_waiting(tmp_path):
    with pytest.raises(IsADirectoryError):
        onnx_file.open_model(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CompileError, match="not a regular file"):
        onnx_file.open_model(tmp_path / "pipe")


def test_payload_of_the_wrong_size_is_refused():
    tensor = TensorProto(name="w", data_type=FLOAT, dims=[1000], raw_data=bytes(3999))
    with pytest.raises(CompileError, match="found 3999 bytes of data, expected 4000 bytes for float32"):
        read_weight(add_model(tensor))


def test_two_initializers_of_one_name_are_refused():
    model = add_model(np.ones(1000, np.float32))
    model.graph.initializer.append(model.graph.initializer[0])
    with pytest.raises(CompileError, match="two of that name"):
        read_weight(model)


def test_file_that_shrinks_while_it_is_read_gives_an_error(tmp_path):
    path = saved(add_model(np.ones(100_000, np.float32)), tmp_path)
    with onnx_file.open_model(path) as source:
        os.truncate(path, 5000)
        for read in (read_all, lambda inner: read_all(converted(inner, ("float32", "float16")))):
            with pytest.raises(CompileError, match=r"found 5000 bytes, (?s:.*)do not write to the model"):
                read(source.weights["w"].source)
        assert source.files[0].changed()
