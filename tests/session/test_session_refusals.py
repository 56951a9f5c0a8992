"""Invalid input to ``Session`` causes one clear error that names the object, and leaves nothing behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import emulated_cards
import qaic
import session_models
from qaic import _core
from qaic.errors import CompileError, DeviceError, OptionError, QaicError, QpcError, QpcFormatError

QPCS = Path(__file__).parent.parent / "data" / "qpc"
CARD_QPCS = sorted(path for path in QPCS.glob("s*.qpc"))
X = np.ones((2, 4), np.float32)


@pytest.fixture
def path(tmp_path):
    return session_models.save(tmp_path, session_models.affine())


# --- files that are not there or not models -------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["missing.onnx", "missing.bin", "no/such/dir/model.onnx", "*.bin", "none/*.onnx"]
)
def test_missing_file_names_the_path(tmp_path, name):
    with pytest.raises(FileNotFoundError) as caught:
        qaic.Session(tmp_path / name)
    assert caught.value.errno == 2
    assert name in str(caught.value)


def test_directory_without_a_container(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"programqpc\.bin"):
        qaic.Session(tmp_path)


def test_glob_that_matches_several_lists_them(tmp_path):
    for name in ("one.bin", "two.bin"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(OptionError, match=r"one\.bin.*two\.bin"):
        qaic.Session(tmp_path / "*.bin")


def test_missing_options_file(path, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"options\.yaml"):
        qaic.Session(path, options_path=tmp_path / "options.yaml")


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"\x08", os.urandom(4096), b"\xff" * 100, b"PK\x03\x04" * 9]
)
def test_file_that_is_no_onnx_model(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(CompileError) as caught:
        qaic.Session(path)
    assert "model.onnx" in str(caught.value)


@pytest.mark.parametrize("keep", [1, 10, 100, -1, -30])
def test_truncated_onnx_model(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CompileError):
        qaic.Session(path)


@pytest.mark.parametrize(
    "content", [b"", b"abc", b"\x7c\xcd\xa1\x00", b"\x7c\xcd\xa1\x00" + bytes(60), bytes(4096)]
)
def test_file_that_is_no_container(tmp_path, content):
    path = tmp_path / "programqpc.bin"
    path.write_bytes(content)
    with pytest.raises(QpcError) as caught:
        qaic.Session(path)
    assert "programqpc.bin" in str(caught.value)


def test_other_file_names_both_kinds(tmp_path):
    path = tmp_path / "model.pb"
    path.write_bytes(b"something")
    with pytest.raises(OptionError) as caught:
        qaic.Session(path)
    for text in ("model.pb", ".onnx", "container"):
        assert text in str(caught.value)


@pytest.mark.parametrize("keep", [3, 39, 100, 1000, -1])
def test_truncated_container(path, tmp_path, keep):
    qaic.Session(path, output_dir=tmp_path / "out")
    container = tmp_path / "out" / "programqpc.bin"
    container.write_bytes(container.read_bytes()[:keep])
    with pytest.raises(QpcFormatError) as caught:
        qaic.Session(container).setup()
    assert str(container) in str(caught.value)


@pytest.mark.parametrize("position", range(0, 3000, 61))
def test_container_with_a_changed_byte_runs_right_or_is_refused(path, tmp_path, position):
    expected = qaic.Session(path, output_dir=tmp_path / "out").run({"x": X})["y"]
    container = tmp_path / "out" / "programqpc.bin"
    content = bytearray(container.read_bytes())
    content[position % len(content)] ^= 0x5A
    container.write_bytes(content)
    try:
        with qaic.Session(container) as session:
            found = session.run({"x": X})
    except (QaicError, UnicodeError):
        return
    # Names and numbers of the model can have changed, but its interface must be complete.
    assert all(isinstance(array, np.ndarray) for array in found.values())
    assert expected.shape == (2, 4)


@pytest.mark.virtual_card("emulated cards return the inputs of programs that were compiled for cards")
@pytest.mark.parametrize("path", CARD_QPCS, ids=lambda path: path.stem)
def test_container_for_a_card_opens_and_is_refused_at_load(path):
    session = qaic.Session(path)
    assert session.model_input_shape_dict
    with pytest.raises(DeviceError) as caught:
        session.setup()
    assert caught.value.code == "device.wrong_target"
    assert "a card" in str(caught.value)
    assert caught.value.context["built_for"] == "a card"
    assert caught.value.hints


def test_there_are_containers_for_cards():
    assert len(CARD_QPCS) >= 10


# --- models that cannot be compiled ---------------------------------------------------------------


def refused(tmp_path, built, **options):
    path = session_models.save(tmp_path, built)
    out = tmp_path / "out"
    with pytest.raises(CompileError) as caught:
        qaic.Session(path, output_dir=out, **options)
    assert not out.exists()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model.onnx"]
    return caught.value


def one(op, dtype="float32", result="float32", shape=(2,), out_shape=(2,), **attributes):
    return session_models.model(
        [helper.make_node(op, ["x"], ["y"], **attributes)],
        [("x", dtype, shape)],
        [("y", result, out_shape)],
    )


def test_unknown_operator_is_named(tmp_path):
    error = refused(tmp_path, one("Frobnicate"))
    assert error.code == "compile.unsupported_operator"
    assert "Frobnicate" in str(error)


def test_operator_without_kernel_for_its_type_is_refused_when_compiled(tmp_path):
    error = refused(tmp_path, one("Sin", "int32", "int32"))
    assert "Sin" in str(error)


@pytest.mark.parametrize("dtype", ["DOUBLE", "UINT16", "UINT32", "UINT64", "STRING", "COMPLEX64", "BFLOAT16"])
def test_unsupported_type_of_an_input_is_named(tmp_path, dtype):
    code = onnx.TensorProto.DataType.Value(dtype)
    error = refused(tmp_path, one("Identity", code, code))
    assert error.code == "compile.unsupported_type"
    assert "'x'" in str(error)


def test_unbound_symbol_is_named_with_the_option(tmp_path):
    error = refused(tmp_path, one("Neg", shape=("batch", 3), out_shape=("batch", 3)))
    assert error.code == "compile.unbound_symbol"
    for text in ("'batch'", "'x'", "onnx_define_symbol"):
        assert text in str(error)


def test_dimension_without_name_is_refused_with_the_option(tmp_path):
    error = refused(tmp_path, one("Neg", shape=(None, 3), out_shape=(None, 3)))
    assert "model_inputs" in str(error)


def test_output_whose_size_depends_on_data(tmp_path):
    error = refused(tmp_path, one("NonZero", result="int64", out_shape=(1, "n")))
    assert error.code == "compile.dynamic_shape"
    assert "'y'" in str(error)


def test_output_that_is_an_input_is_refused_not_left_empty(tmp_path):
    built = one("Neg")
    built.graph.output.append(session_models.value("x", "float32", [2]))
    error = refused(tmp_path, built)
    assert error.code == "compile.output_is_input"
    for text in ("'x'", "Identity"):
        assert text in str(error)


def test_more_than_eight_dims(tmp_path):
    error = refused(tmp_path, one("Neg", shape=(1,) * 9, out_shape=(1,) * 9))
    assert error.code == "compile.too_many_dims"
    assert "found 9 dims, expected at most 8" in str(error)


def test_tensor_beyond_four_gigabytes(tmp_path):
    error = refused(tmp_path, one("Neg", shape=(1 << 20, 1 << 11), out_shape=(1 << 20, 1 << 11)))
    assert error.code == "compile.tensor_too_large"


def test_graph_with_a_missing_value(tmp_path):
    built = one("Neg")
    built.graph.node[0].input[0] = "nowhere"
    assert "nowhere" in str(refused(tmp_path, built))


# --- places that cannot be written ----------------------------------------------------------------


def test_output_dir_that_is_a_file_leaves_everything(path, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OptionError, match="it is a file; expected a missing or empty directory"):
        qaic.Session(path, output_dir=tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_unwritable_output_dir_leaves_nothing(path, tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    with pytest.raises(PermissionError, match="locked"):
        qaic.Session(path, output_dir=folder)
    assert list(folder.iterdir()) == []


def test_output_dir_on_a_file_system_that_refuses(path):
    with pytest.raises(OSError, match=r"/proc"):
        qaic.Session(path, output_dir="/proc/openqaic/out")


# --- the engine -----------------------------------------------------------------------------------


CHILD = """
import json, sys, numpy as np
import qaic
try:
    qaic.Session(sys.argv[1]).run({"x": np.ones((2, 4), np.float32)})
except qaic.errors.QaicError as error:
    print(json.dumps([type(error).__name__, error.code, str(error), list(error.hints)]))
else:
    print(json.dumps(["ran"]))
"""


def run_with_engine(path, library, **more):
    environment = {**os.environ, "QAIC_ONNXRUNTIME_LIB": str(library), **more}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def refused_with_engine(path, library, expected):
    """Return the message about a container that is refused with this engine and this error code."""
    (name, code, text, hints), log = run_with_engine(path, library)
    if emulated_cards.are_meant():
        # Firmware reports only a refusal; the log of the emulated firmware contains the reason.
        assert (name, code) == ("DeviceError", "device.firmware")
        return log
    assert (name, code) == ("DeviceError", expected)
    return "\n".join([text, *hints])


@pytest.fixture
def container(path, tmp_path):
    qaic.Session(path, output_dir=tmp_path / "out")
    return tmp_path / "out" / "programqpc.bin"


def test_missing_engine_names_the_place_and_the_package(container, tmp_path):
    text = refused_with_engine(container, tmp_path / "nothing.so", "engine.missing")
    assert "nothing.so" in text
    # Errors have hints; lines of a log do not.
    assert "pip install onnxruntime" in text or emulated_cards.are_meant()


def test_engine_that_is_no_library(container, tmp_path):
    (tmp_path / "fake.so").write_text("not a library")
    assert "fake.so" in refused_with_engine(container, tmp_path / "fake.so", "engine.unusable")


def test_engine_that_is_another_library(container):
    assert "OrtGetApiBase" in refused_with_engine(container, _core.__file__, "engine.unusable")


def test_missing_engine_when_compiling_leaves_nothing(path, tmp_path):
    found, _ = run_with_engine(path, tmp_path / "nothing.so", QAIC_CACHE_DIR=str(tmp_path / "cache"))
    assert found[1] == "engine.missing"
    assert not list(tmp_path.rglob("programqpc.bin"))
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.skipif("QAIC_ONNXRUNTIME_LIB" in os.environ, reason="another engine was asked for")
def test_the_engine_is_that_of_the_installed_package():
    library, version = _core.engine_info()
    assert version == onnxruntime.__version__
    assert Path(library).resolve().is_relative_to(Path(onnxruntime.__file__).resolve().parent)


def test_engine_that_is_named_runs(container):
    library, version = _core.engine_info()
    assert version
    assert run_with_engine(container, library)[0] == ["ran"]


def test_errors_of_every_kind_have_codes_of_their_own(path):
    with pytest.raises(QaicError) as caught:
        qaic.Session(path).run({})
    error = caught.value
    assert error.code == "input.missing"
    assert isinstance(error.context, dict)
    assert isinstance(error.hints, tuple)
    assert error.message
