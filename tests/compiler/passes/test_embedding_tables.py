import io
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from compiler_oracle import info, lowered, model_of, node, run, whole
from qaic.compiler.ir.constants.weights import read_all
from qaic.compiler.passes.embedding_tables import find_tables, write_tables
from qaic.errors import CompileError
from qaic.options.files.parsed_file import InputFileContent

LARGE = np.arange(3000, dtype=np.float32).reshape(1000, 3)
SMALL = np.arange(6, dtype=np.float32).reshape(2, 3)


def recommender():
    return model_of(
        [
            node("Gather", ["emb/large", "i"], ["a"]),
            node("Gather", ["small", "i"], ["b"]),
            node("Add", ["a", "b"], ["y"]),
        ],
        [info("i", [2], TensorProto.INT64)],
        [info("y", [2, 3])],
        [("emb/large", LARGE), ("small", SMALL)],
    )


def saved(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def zipped(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, saved(content) if isinstance(content, np.ndarray) else content)
    return InputFileContent(path, "")


def result(program):
    return run(whole(program), {"i": np.array([1, 0])})["y"]


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_tables_replace_initializers_of_the_same_name(tmp_path, compression):
    members = {"emb/large.npy": LARGE + 0.5, "small.npy": SMALL * 2}
    program = lowered(recommender(), load_embedding_tables=zipped(tmp_path / "t.zip", members, compression))
    np.testing.assert_array_equal(result(program), (LARGE + 0.5)[[1, 0]] + (SMALL * 2)[[1, 0]])


def test_tables_that_are_not_in_the_file_stay(tmp_path, caplog):
    members = {"small.npy": SMALL * 2, "other.npy": SMALL, "readme.txt": b"hello"}
    program = lowered(recommender(), load_embedding_tables=zipped(tmp_path / "t.zip", members))
    np.testing.assert_array_equal(result(program), LARGE[[1, 0]] + (SMALL * 2)[[1, 0]])
    assert "'other.npy', 'readme.txt'" in caplog.text


def test_tables_written_are_read_by_numpy_and_by_us(tmp_path):
    import onnx

    from qaic.compiler.frontend.files import onnx_file

    source = onnx_file.open_bytes(recommender().SerializeToString())
    model = source.parse()
    assert isinstance(model, onnx.ModelProto)
    tables = find_tables(model, source.weights)
    write_tables(tables, tmp_path / "t.zip")
    with np.load(tmp_path / "t.zip") as archive:
        np.testing.assert_array_equal(archive["emb/large"], LARGE)
        np.testing.assert_array_equal(archive["small"], SMALL)
    write_tables(tables, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "t.zip").read_bytes()
    program = lowered(recommender(), load_embedding_tables=InputFileContent(tmp_path / "t.zip", ""))
    assert read_all(program.weights["emb/large"].source) == LARGE.tobytes()


def test_a_model_without_tables_cannot_be_dumped():
    model = model_of([node("Relu", ["x"], ["y"])], [info("x", [2])], [info("y", [2])])
    with pytest.raises(CompileError) as caught:
        find_tables(model, {})
    assert caught.value.code == "compile.embedding_tables"


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"small.npy": SMALL.astype(np.float64)}, "found float64 [2, 3], expected float32 [2, 3]"),
        ({"small.npy": SMALL.T.copy()}, "found float32 [3, 2]"),
        ({"small.npy": np.asfortranarray(SMALL)}, "Fortran order"),
        ({"small.npy": SMALL.astype(">f4")}, "big-endian"),
        ({"small.npy": b"\x93NUMPY\x01\x00\xff\xff"}, "header"),
        ({"small.npy": b""}, "header"),
        ({"small.npy": b"\x93NUMPY\x01\x00\x10\x00{'descr': __import"}, "header"),
        ({"nothing.npy": SMALL}, "expected names of initializers"),
        ({}, "expected names of initializers"),
    ],
)
def test_wrong_tables_are_refused_by_name(tmp_path, members, said):
    with pytest.raises(CompileError) as caught:
        lowered(recommender(), load_embedding_tables=zipped(tmp_path / "t.zip", members))
    assert caught.value.code == "compile.embedding_tables"
    assert said in str(caught.value)
    assert "t.zip" in str(caught.value)


@given(data=st.data())
def test_damaged_files_are_refused_or_change_nothing_else(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damaged") / "t.zip"
    zipped(path, {"small.npy": SMALL}, zipfile.ZIP_DEFLATED)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        program = lowered(recommender(), load_embedding_tables=InputFileContent(path, ""))
    except CompileError as error:
        assert error.code == "compile.embedding_tables"  # noqa: PT017  # it may also be read
    else:
        np.testing.assert_array_equal(result(program), LARGE[[1, 0]] + SMALL[[1, 0]])
