"""Life of a ``Session``: load, reset, reuse, cores, and options that can change."""

import gc
import shutil
import weakref

import numpy as np
import pytest

import qaic
import session_models
from child_process import WATCHDOG_S
from qaic import _core
from qaic.errors import DeviceBusyError, DeviceNotFoundError, OptionError, QaicError, UnknownOptionError

X = np.ones((2, 4), np.float32)


@pytest.fixture
def path(tmp_path):
    return session_models.save(tmp_path, session_models.affine())


def free_cores():
    # Deleting an object waits only briefly for the thread that releases cores.
    assert _core.await_teardown(WATCHDOG_S)
    return [device["nsp_free"] for device in _core.Context().devices()]


@pytest.fixture(autouse=True)
def _all_cores_come_back():
    gc.collect()
    before = free_cores()
    assert before == [16]
    yield
    gc.collect()
    assert free_cores() == before


def test_construction_loads_nothing_and_knows_the_shapes(path):
    session = qaic.Session(path)
    assert free_cores() == [16]
    assert session.model_input_shape_dict == {"x": ((2, 4), np.dtype("float32"))}
    assert session.model_output_shape_dict == {"y": ((2, 4), np.dtype("float32"))}


def test_shape_dictionaries_serve_as_attribute_and_method(path):
    session = qaic.Session(path)
    for shapes in (session.model_input_shape_dict, session.model_input_shape_dict()):
        shape, dtype = shapes["x"]
        assert isinstance(shape, tuple)
        assert isinstance(dtype, np.dtype)
        assert str(dtype) == "float32"
        assert np.zeros(shape, dtype).shape == (2, 4)
        assert list(shapes.items()) == [("x", ((2, 4), np.dtype("float32")))]
    assert list(session.model_output_shape_dict()) == ["y"]


def test_setup_takes_cores_once_and_reset_gives_them_back(path):
    session = qaic.Session(path, aic_num_cores=3, num_activations=2)
    session.setup()
    session.setup()
    assert free_cores() == [10]
    session.run({"x": X})
    assert free_cores() == [10]
    session.reset()
    assert free_cores() == [16]
    session.reset()
    np.testing.assert_array_equal(session.run({"x": X})["y"].shape, (2, 4))
    assert free_cores() == [10]
    session.reset()


def test_results_are_the_same_after_reset(path):
    session = qaic.Session(path)
    before = session.run({"x": X})["y"]
    session.reset()
    np.testing.assert_array_equal(session.run({"x": X})["y"], before)
    session.reset()


def test_with_block_resets_also_after_an_error(path):
    with qaic.Session(path) as session:
        session.run({"x": X})
        assert free_cores() == [15]
    assert free_cores() == [16]
    with pytest.raises(qaic.errors.InputError), session:
        session.run({})
    assert free_cores() == [16]


def test_garbage_collection_frees_cores_while_outputs_live(path):
    session = qaic.Session(path, aic_num_cores=16)
    found = session.run({"x": X})["y"]
    copy = found.copy()
    alive = weakref.ref(session)
    del session
    gc.collect()
    assert alive() is None
    assert free_cores() == [16]
    np.testing.assert_array_equal(found, copy)


@pytest.mark.parametrize("options", [{}, {"enable_metrics": True}, {"enable_profiling": True}])
def test_kept_exceptions_do_not_keep_cores(path, options):
    with qaic.Session(path, **options) as session:
        with pytest.raises(qaic.errors.InputError) as of_run:
            session.run({})
        with pytest.raises(qaic.errors.InputError) as of_benchmark:
            session.run_benchmark(input_dict={})
        assert free_cores() == [15]
    assert free_cores() == [16]
    assert of_run.value
    assert of_benchmark.value


def test_session_in_a_cycle_is_collected(path):
    session = qaic.Session(path)
    session.setup()
    session.itself = session
    del session
    gc.collect()
    assert free_cores() == [16]


def test_more_cores_than_free_names_both(path):
    with qaic.Session(path, aic_num_cores=10) as first, qaic.Session(path, aic_num_cores=7) as second:
        first.setup()
        with pytest.raises(DeviceBusyError) as caught:
            second.setup()
        assert str(caught.value).startswith("device 0 has 6 free cores of 16; the program needs 7\n")
        context = caught.value.context
        assert (context["needed"], context["free"], context["total"]) == (7, 6, 16)
        assert free_cores() == [6]
        first.reset()
        second.run({"x": X})


def test_activations_beyond_the_card_take_no_core(path):
    session = qaic.Session(path, num_activations=17)
    with pytest.raises(DeviceBusyError, match=r"17|the program needs 1\b"):
        session.run({"x": X})
    assert free_cores() == [16]


def test_device_that_does_not_exist(path):
    with pytest.raises(DeviceNotFoundError, match=r"7.*\[0\]"):
        qaic.Session(path, dev_id=7).setup()


# --- where models come from -----------------------------------------------------------------------


def test_container_directory_glob_and_onnx_are_the_same_model(path, tmp_path):
    out = tmp_path / "out"
    expected = qaic.Session(path, output_dir=out).run({"x": X})["y"]
    assert [entry.name for entry in out.iterdir()] == ["programqpc.bin"]
    for given in (out / "programqpc.bin", str(out), out / "*.bin", str(tmp_path / "o?t" / "*.bin")):
        with qaic.Session(given) as session:
            np.testing.assert_array_equal(session.run({"x": X})["y"], expected)


def test_compile_options_with_a_container_warn_once_and_are_ignored(path, tmp_path, caplog):
    qaic.Session(path, output_dir=tmp_path / "out", aic_num_cores=2)
    with caplog.at_level("WARNING", logger="qaic"):
        session = qaic.Session(tmp_path / "out", aic_num_cores=5, convert_to_fp16=True, set_size=1)
    assert len(caplog.records) == 1
    assert "aic_num_cores" in caplog.text
    with session:
        session.setup()
        assert free_cores() == [14]


def test_file_may_go_after_construction(path, tmp_path):
    session = qaic.Session(path, output_dir=tmp_path / "out")
    container = qaic.Session(tmp_path / "out")
    expected = session.run({"x": X})["y"]
    session.reset()
    path.unlink()
    shutil.rmtree(tmp_path / "out")
    for one in (session, container):
        np.testing.assert_array_equal(one.run({"x": X})["y"], expected)
        one.reset()
        np.testing.assert_array_equal(one.run({"x": X})["y"], expected)
        one.reset()


def test_onnx_define_symbol_gives_shapes(tmp_path):
    built = session_models.affine()
    built.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    built.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    path = session_models.save(tmp_path, built)
    with qaic.Session(path, onnx_define_symbol=[("batch", 5)]) as session:
        assert session.model_input_shape_dict["x"][0] == (5, 4)
        assert session.run({"x": np.ones((5, 4), np.float32)})["y"].shape == (5, 4)


def test_options_file_is_read_and_keywords_win(path, tmp_path):
    options = tmp_path / "options.yaml"
    options.write_text("aic-num-cores: 4\nset_size: 3\nnum_activations: 2\n")
    with qaic.Session(path, options_path=options, num_activations=1) as session:
        session.setup()
        assert free_cores() == [12]
        assert session.backend_options()["set_size"] == 3


# --- options that may change ----------------------------------------------------------------------


def test_backend_options_has_the_documented_keys(path):
    options = qaic.Session(path, set_size=4).backend_options()
    assert {"num_activations": 1, "dev_id": 0, "set_size": 4}.items() <= options.items()
    options["set_size"] = 99  # a copy
    assert qaic.Session(path, set_size=4).backend_options()["set_size"] == 4


def test_update_takes_effect_at_the_next_use(path):
    with qaic.Session(path) as session:
        session.run({"x": X})
        assert free_cores() == [15]
        session.update_backend_options(num_activations=3, set_size=1)
        assert session.backend_options()["num_activations"] == 3
        session.run({"x": X})
        assert free_cores() == [13]
        session.update_backend_options(num_activation=2)  # the other documented spelling
        session.setup()
        assert free_cores() == [14]


def test_update_without_change_keeps_the_program(path):
    with qaic.Session(path) as session:
        session.setup()
        loaded = session._loaded
        session.update_backend_options(set_size=session.backend_options()["set_size"])
        assert session._loaded is loaded


@pytest.mark.parametrize(
    "options", [{"aic_num_cores": 2}, {"sett_size": 2}, {"set_size": 0}, {"dev_id": "x"}]
)
def test_rejects_updates_that_are_no_run_time_options(path, options):
    session = qaic.Session(path)
    before = session.backend_options()
    with pytest.raises(OptionError) as caught:
        session.update_backend_options(**options)
    assert next(iter(options)) in str(caught.value)
    assert session.backend_options() == before


def test_update_changes_all_or_nothing(path):
    session = qaic.Session(path)
    with pytest.raises(OptionError):
        session.update_backend_options(set_size=3, num_activations=-1)
    assert session.backend_options()["set_size"] == 10


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_activationz": 1}, ["num_activationz", "num_activations"]),
        ({"backend": "gpu"}, ["backend", "aic"]),
        ({"enable_metrics": True, "enable_profiling": True}, ["enable_metrics", "enable_profiling"]),
        ({"aic_num_cores": 17}, ["aic_num_cores", "17"]),
        ({"set_size": 2.5}, ["set_size", "2.5"]),
        ({"num_activations": 0}, ["num_activations", "0"]),
    ],
)
def test_rejects_options_by_name_with_what_was_expected(path, options, words):
    with pytest.raises(OptionError) as caught:
        qaic.Session(path, **options)
    assert isinstance(caught.value, ValueError)
    for word in words:
        assert word in str(caught.value)


def test_unknown_option_is_also_a_type_error(path):
    with pytest.raises(TypeError) as caught:
        qaic.Session(path, nonsense=1)
    assert isinstance(caught.value, UnknownOptionError)
    assert isinstance(caught.value, QaicError)


@pytest.mark.parametrize("backend", ["aic", "qaic"])
def test_backend_has_two_spellings(path, backend):
    assert qaic.Session(path, backend=backend).model_input_shape_dict
