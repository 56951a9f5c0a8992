"""All ways to open a program and to pass inputs, and the description of a session."""

import asyncio
import copy
import gc
import os
import pickle
import subprocess
import sys
from collections import UserDict

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import qaic
import qpc_support
import session_models
from child_process import WATCHDOG_S
from qaic.errors import InputTypeError, MissingInputError, OptionError, StateError

X = np.arange(8, dtype=np.float32).reshape(2, 4) - 4

writes_dlpack = pytest.mark.skipif(
    not np.from_dlpack(np.zeros(1)).flags.writeable, reason="this numpy only reads what DLPack describes"
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return session_models.save(tmp_path_factory.mktemp("forms"), session_models.affine())


@pytest.fixture(scope="module")
def container(path):
    return qaic.compile(path)


FORMS = {
    "model file": lambda path, container: path,
    "model file as text": lambda path, container: str(path),
    "model bytes": lambda path, container: path.read_bytes(),
    "model bytearray": lambda path, container: bytearray(path.read_bytes()),
    "ModelProto": lambda path, container: onnx.load(path),
    "container file": lambda path, container: container.path,
    "container bytes": lambda path, container: container.path.read_bytes(),
    "container memoryview": lambda path, container: memoryview(container.path.read_bytes()),
    "Qpc of a file": lambda path, container: container,
    "Qpc of bytes": lambda path, container: qaic.Qpc(container.path.read_bytes()),
    "Qpc of a Qpc": lambda path, container: qaic.Qpc(container),
    "Qpc through a pickle": lambda path, container: pickle.loads(pickle.dumps(container)),
    "Qpc of bytes through a pickle": lambda path, container: pickle.loads(
        pickle.dumps(qaic.Qpc(container.path.read_bytes()))
    ),
}


@pytest.fixture(scope="module")
def opened(path, container):
    """Each form of the program, loaded."""
    sessions = {name: qaic.Session(make(path, container)) for name, make in FORMS.items()}
    for name in ("model file", "container bytes"):
        sessions[f"{name}, session through a pickle"] = pickle.loads(pickle.dumps(sessions[name]))
    yield sessions
    for session in sessions.values():
        session.close()


@settings(max_examples=10)
@given(x=arrays.arrays(np.float32, (2, 4), elements=st.floats(-1e3, 1e3, width=32)))
def test_every_form_gives_equal_outputs(opened, x):
    expected = None
    for session in opened.values():
        with session:
            found = session.run(x)["y"]
        expected = found if expected is None else expected
        np.testing.assert_array_equal(found, expected)
    assert expected is not None


def test_forms_describe_the_same_program(opened):
    for session in opened.values():
        assert session.model_input_shape_dict == {"x": ((2, 4), np.dtype("float32"))}
        assert [str(one) for one in session.inputs] == ["x float32[2, 4]"]
        assert session.qpc.inputs == session.inputs
        assert session.qpc.outputs == session.outputs
        assert bytes(session.qpc.content) == bytes(opened["container file"].qpc.content)


@pytest.mark.parametrize("wrong", [None, 3, object(), [1, 2], qaic.Session, np.zeros(3)])
def test_what_is_no_model_is_refused(wrong):
    with pytest.raises(InputTypeError, match=r"expected a path, bytes or an onnx\.ModelProto") as caught:
        qaic.Session(wrong)
    assert caught.value.code == "option.model_type"


def test_bytes_that_are_neither_model_nor_container_are_refused():
    with pytest.raises(qaic.errors.CompileError, match="ONNX"):
        qaic.Session(b"no model at all")


def test_compile_still_refuses_what_is_compiled(container):
    for form in (container, qaic.Qpc(container.path.read_bytes()), bytes(container.content)):
        with pytest.raises(InputTypeError) as caught:
            qaic.compile(form)
        assert caught.value.code == "option.model_compiled"


# --- forms of inputs ------------------------------------------------------------------------------


class Foreign:
    """An array of another library that supports only DLPack."""

    def __init__(self, array, device=1):
        self.array = array
        self.device = device

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return (self.device, 0)


@pytest.fixture(scope="module")
def session(path):
    with qaic.Session(path, set_size=2) as session:
        session.setup()
        yield session


@pytest.mark.parametrize(
    "form",
    [X, {"x": X}, UserDict(x=X), X.tolist(), X[None], Foreign(X), {"x": Foreign(X)}, np.asfortranarray(X)],
    ids=["array", "dict", "mapping", "lists", "leading one", "dlpack", "dlpack in a dict", "fortran"],
)
def test_inputs_in_any_form(session, form):
    expected = session.run({"x": X})["y"]
    for found in (
        session.run(form),
        session.submit(form).result(),
        asyncio.run(session.run_async(form)),
        *session.map([form, form]),
    ):
        np.testing.assert_array_equal(found["y"], expected)
    result = session.run_benchmark(num_inferences=2, input_dict=form)
    assert (result.inf_completed, result.inf_rate, result.inf_time, result.batch_size) == result
    assert result.inf_completed == 2


def test_inputs_as_keywords(session):
    expected = session.run({"x": X})["y"]
    np.testing.assert_array_equal(session.run(x=X)["y"], expected)
    np.testing.assert_array_equal(session.run({}, x=X)["y"], expected)
    with pytest.raises(qaic.errors.InputError, match=r"`z`|'z'"):
        session.run(z=X)
    with pytest.raises(TypeError, match="multiple values for input 'x'"):
        session.run({"x": X + 1}, x=X)
    with pytest.raises(MissingInputError):
        session.run()


def test_recorded_runs_take_every_form(path):
    with qaic.Session(path, enable_metrics=True) as session:
        first, *others = [session.run(X), session.run(x=X), session.run({"x": X}), session.run(Foreign(X))]
    for found in others:
        np.testing.assert_array_equal(found["y"], first["y"])


@writes_dlpack
def test_recorded_runs_write_to_arrays_of_other_libraries(path):
    target = Foreign(np.zeros((2, 4), np.float32))
    with qaic.Session(path, enable_metrics=True) as session:
        assert session.run(X, out={"y": target})["y"] is target
        np.testing.assert_array_equal(target.array, session.run(X)["y"])


def test_an_array_in_the_memory_of_another_device_is_refused(session):
    with pytest.raises(InputTypeError, match="memory of another device") as caught:
        session.run(Foreign(X, device=2))
    assert caught.value.code == "input.device"


@writes_dlpack
def test_outputs_go_to_arrays_of_other_libraries(session):
    target = Foreign(np.zeros((2, 4), np.float32))
    found = session.run(X, out={"y": target})
    assert found["y"] is target
    np.testing.assert_array_equal(target.array, session.run(X)["y"])
    wrong = Foreign(np.zeros((4, 2), np.float32))
    with pytest.raises(qaic.errors.InputError) as caught:
        session.run(X, out={"y": wrong})
    assert caught.value.code == "output.array"
    assert not wrong.array.any()


def test_outputs_are_taken_by_dlpack(session):
    found = session.run(X)["y"]
    np.testing.assert_array_equal(np.from_dlpack(found), found)


def test_an_array_for_a_program_of_two_inputs_is_refused(tmp_path):
    nodes = [onnx.helper.make_node("Add", ["a", "b"], ["y"])]
    two = [("a", "float32", [2]), ("b", "float32", [2])]
    built = session_models.model(nodes, two, [("y", "float32", [2])])
    with qaic.Session(built) as session:
        with pytest.raises(InputTypeError, match=r'with the names \["a", "b"\]'):
            session.run(np.zeros(2, np.float32))
        assert session.run(a=[1.0, 2.0], b=[1.0, 1.0])["y"].tolist() == [2, 3]


# --- life cycle -----------------------------------------------------------------------------------


def test_a_closed_session_refuses_to_load(path):
    session = qaic.Session(path)
    expected = session.run(X)["y"]
    session.reset()
    np.testing.assert_array_equal(session.run(X)["y"], expected)
    session.close()
    session.close()
    for use in (
        lambda: session.run(X),
        lambda: session.submit(X),
        lambda: list(session.map([X])),
        lambda: asyncio.run(session.run_async(X)),
        session.setup,
        session.run_benchmark,
    ):
        with pytest.raises(StateError, match="the session is closed") as caught:
            use()
        assert caught.value.code == "session.closed"
    assert session.inputs[0].name == "x"
    assert "closed" in repr(session)


def test_async_with_gives_the_device_back(path):
    async def work():
        async with qaic.Session(path) as session:
            outputs = await session.run_async(X)
            during = qaic.devices()[0].nsp_free
        return outputs["y"].shape, during

    gc.collect()  # objects in reference cycles release their cores now, not during the run
    assert qaic._core.await_teardown(WATCHDOG_S)
    before = qaic.devices()[0].nsp_free
    shape, during = asyncio.run(work())
    assert shape == (2, 4)
    assert during < before == qaic.devices()[0].nsp_free


# --- descriptions ---------------------------------------------------------------------------------


def test_paths_and_options(path, container):
    session = qaic.Session(path, convert_to_fp16=True, set_size=3)
    assert session.path.is_file()
    assert session.qpc.path == session.path
    assert session.options["convert_to_fp16"] is True
    assert session.options["set_size"] == 3
    session.update_backend_options(set_size=4)
    assert session.options["set_size"] == 4
    with pytest.raises(TypeError):
        session.options["set_size"] = 5
    assert qaic.Session(bytes(container.content)).path is None


def test_warnings_are_on_the_results(path, container, caplog):
    session = qaic.Session(container, aic_num_cores=4)
    assert session.warnings == ("the model is already compiled; compile options are ignored: aic_num_cores",)
    assert session.warnings[0] in caplog.text
    file = path.with_name("options.yaml")
    file.write_text("aic_num_cores: 2\nno_such_option: 1\n")
    compiled = qaic.compile(path, file)
    (found,) = [one for one in compiled.diagnostics if one.code == "options"]
    assert "no_such_option" in found.message
    assert qaic.Session(path, options_path=file).warnings == (found.message,)
    assert qaic.Session(compiled).warnings == (found.message,)


def test_texts_name_the_program(path, container):
    session = qaic.Session(container, num_activations=2, set_size=1)
    assert repr(session) == (
        f"<qaic.Session {str(container.path)!r}: x float32[2, 4] -> y float32[2, 4]; not loaded, "
        "2 inferences at a time>"
    )
    for shown in (session, container):
        page = shown._repr_html_()
        assert '<td class="t">x</td><td class="t">(2, 4)</td><td class="t">float32</td>' in page
    session.run_benchmark(num_inferences=1)
    assert "; loaded, " in repr(session)
    session.reset()


def test_names_in_html_are_escaped(tmp_path):
    name = "<script>alert(1)</script>"
    built = session_models.model(
        [onnx.helper.make_node("Neg", [name], ["y"])], [(name, "float32", [1])], [("y", "float32", [1])]
    )
    assert name not in qaic.Session(built)._repr_html_()
    assert name not in qaic.compile(built)._repr_html_()


# --- files and processes --------------------------------------------------------------------------


def test_a_container_is_a_path(container, tmp_path):
    assert container.__fspath__() == str(container.path)
    assert qaic.Qpc(container.path.read_bytes()).save(tmp_path) == tmp_path / "programqpc.bin"
    saved = qaic.Qpc(tmp_path / "programqpc.bin").save(tmp_path / "other.qpc")
    assert saved.read_bytes() == container.path.read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["other.qpc", "programqpc.bin"]
    with pytest.raises(StateError, match="has no file") as caught:
        os.fspath(qaic.Qpc(container.path.read_bytes()))
    assert caught.value.code == "qpc.no_file"
    with pytest.raises(FileNotFoundError):
        container.save(tmp_path / "missing" / "programqpc.bin")


def test_a_slice_is_saved_by_itself(tmp_path):
    outer = qaic.Qpc(qpc_support.container([("slice00", qpc_support.FIXTURES[0].read_bytes())]))
    assert ">slice00</td>" in outer._repr_html_()
    for name, part in outer.slices.items():
        saved = part.save(tmp_path / name)
        assert bytes(qaic.Qpc(saved).content) == bytes(part.content)
        assert pickle.loads(pickle.dumps(part)).network_descriptor == part.network_descriptor


def test_a_session_goes_to_another_process(path):
    session = qaic.Session(path, set_size=2, dev_id=0)
    expected = session.run(X)["y"]
    pickled = pickle.dumps(session)
    # The pickle contains the path of the container, and not its contents.
    assert len(pickled) < 1000
    program = (
        "import pickle, sys, numpy as np; session = pickle.load(sys.stdin.buffer); "
        "assert session.options['set_size'] == 2; "
        "x = np.arange(8, dtype=np.float32).reshape(2, 4) - 4; "
        "sys.stdout.buffer.write(session.run(x)['y'].tobytes())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=pickled, capture_output=True, check=True, cwd="/"
    )
    assert done.stdout == expected.tobytes()
    session.close()


def test_a_copy_is_a_session_of_its_own(path):
    session = qaic.Session(path)
    other = copy.copy(session)
    session.close()
    assert other.run(X)["y"].shape == (2, 4)
    other.close()


def test_options_of_running_are_told_from_options_of_compiling(path):
    options = qaic.CompileOptions(aic_num_cores=2)
    assert qaic.Session(path, **options).qpc.program_info.num_cores == 2
    with pytest.raises(OptionError, match="run options"):
        qaic.CompileOptions(set_size=2)
