"""``qaic.compile``: all forms of models and options, and the resulting container."""

import json
import logging
import threading
from pathlib import Path

import numpy as np
import pytest

import qaic
import session_models
from child_process import WATCHDOG_S
from qaic import compilation
from qaic.compiler import driver
from qaic.configs import AicCompilerConfig, AicRuntimeConfig, CompileConfig
from qaic.errors import (
    CompileError,
    InputTypeError,
    OptionConflictError,
    OptionError,
    UnknownOptionError,
)

MODEL = session_models.affine()
OPTIONS = {"aic_num_cores": 4, "convert_to_fp16": True, "stats_level": 70}


@pytest.fixture
def path(tmp_path):
    return session_models.save(tmp_path, MODEL)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def content(qpc):
    return qpc.path.read_bytes()


# --- models -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["path", "text", "bytes", "bytearray", "view", "proto", "list", "tuple"])
def test_every_form_of_a_model_gives_the_same_container(path, form):
    data = path.read_bytes()
    model = {
        "path": path,
        "text": str(path),
        "bytes": data,
        "bytearray": bytearray(data),
        "view": memoryview(data),
        "proto": MODEL,
        "list": [path],
        "tuple": (MODEL,),
    }[form]
    qpc = qaic.compile(model, OPTIONS)
    assert isinstance(qpc, qaic.Qpc)
    assert content(qpc) == content(qaic.compile(path, OPTIONS))
    assert qpc.program_info.num_cores == 4


def test_a_container_runs(path):
    x = np.ones((2, 4), np.float32)
    qpc = qaic.compile(path)
    outputs = qaic.Session(qpc.path).run({"x": x})
    np.testing.assert_allclose(outputs["y"], session_models.engine(MODEL).run(None, {"x": x})[0], rtol=1e-6)


def test_compiled_models_are_type_errors(path):
    qpc = qaic.compile(path)
    for compiled in (qpc, qpc.path, str(qpc.path), qpc.path.parent, content(qpc), [qpc]):
        with pytest.raises(TypeError, match="is a compiled container") as caught:
            qaic.compile(compiled)
        assert isinstance(caught.value, InputTypeError)
        assert caught.value.code == "option.model_compiled"


@pytest.mark.parametrize("model", [None, 5, object(), np.zeros(3), MODEL.graph, {"x": 1}])
def test_what_is_no_model_is_a_type_error(model):
    with pytest.raises(TypeError, match=rf"found type {type(model).__name__}, expected a path, bytes or"):
        qaic.compile(model)


def test_several_models_do_not_fit_one_program(path):
    with pytest.raises(CompileError, match="found 2 models, expected one") as caught:
        qaic.compile([path, path])
    assert caught.value.code == "compile.several_models"
    with pytest.raises(CompileError, match="the list of models is empty"):
        qaic.compile([])


def test_a_missing_model_is_not_found():
    with pytest.raises(FileNotFoundError):
        qaic.compile("none.onnx")
    with pytest.raises(CompileError):
        qaic.compile(b"no model")


# --- options ------------------------------------------------------------------------------------------------


def forms_of_options():
    Path("options.yaml").write_text("aic-num-cores: 4\nconvert_to_fp16: yes\nstats-level: 70\nset_size: 3\n")
    flat = {"compiler_num_of_cores": 4, "compiler_convert_to_FP16": True, "compiler_stat_level": 70}
    Path("options.json").write_text(json.dumps({**flat, "runtime_num_activations": 2}))
    Path("outer.json").write_text('{"backend_extensions": {"config_file_path": "options.json"}}')
    aic = AicCompilerConfig(num_of_cores=4, convert_to_fp16=True, stat_level=70)
    return {
        "mapping": OPTIONS,
        "spellings": {"num-of-cores": "4", "compiler_convert_to_FP16": "true", "-stats-level": 70},
        "yaml": "options.yaml",
        "yaml path": Path("options.yaml"),
        "json": "options.json",
        "outer json": Path("outer.json"),
        "aic": aic,
        "config": CompileConfig(backend="AIC", compiler_custom_configs=aic),
        "config from file": CompileConfig.from_backend_extensions("AIC", "options.json", allow_aic=True),
        "config passed through": CompileConfig.from_backend_extensions(
            "AIC", "options.json", allow_aic=True, passthrough=True
        ),
    }


def test_every_form_of_options_gives_the_same_container(path):
    expected = qaic.compile(path, **OPTIONS)
    assert expected.options == OPTIONS
    for form, config in forms_of_options().items():
        assert content(qaic.compile(path, config)) == content(expected), form


def test_nothing_given_means_the_defaults(path):
    for config in (
        None,
        {},
        AicCompilerConfig(),
        AicRuntimeConfig(num_activations=3),
        CompileConfig(backend="AIC"),
    ):
        assert qaic.compile(path, config).options == {}


def test_keywords_win_over_every_form(path):
    for config in forms_of_options().values():
        qpc = qaic.compile(path, config, num_of_cores=2, convert_to_fp16=None)
        assert qpc.options == {**OPTIONS, "aic_num_cores": 2}


def test_two_spellings_in_one_form_must_agree(path):
    with pytest.raises(OptionConflictError, match="same option"):
        qaic.compile(path, {"aic_num_cores": 2, "num_of_cores": 4})


def test_wrong_values_are_listed_as_they_were_written(path):
    config = CompileConfig(
        backend="AIC", compiler_custom_configs=AicCompilerConfig(num_of_cores=400, cluster_sizes="1 2 0")
    )
    with pytest.raises(OptionError) as caught:
        qaic.compile(path, config, num_histogram_bins="few")
    for part in (
        "num_of_cores: expected an integer from 1 to 16, found 400",
        "cluster_sizes: ",
        "num_histogram_bins: ",
    ):
        assert part in str(caught.value)
    assert not list(Path().glob("*.bin"))


def test_unknown_options_name_the_nearest(path):
    with pytest.raises(TypeError, match="did you mean aic_num_cores") as caught:
        qaic.compile(path, aic_num_core=2)
    assert isinstance(caught.value, UnknownOptionError)
    with pytest.raises(UnknownOptionError, match="aic_num_cores"):
        qaic.compile(path, {"aic_num_core": 2})


def test_extension_file_with_unknown_keys_warns(path, caplog):
    Path("x.json").write_text('{"compiler_num_of_core": 2, "runtime_process_lock": "x"}')
    assert qaic.compile(path, "x.json").options == {}
    assert "x.json: compiler_num_of_core is not an option; did you mean" in caplog.text
    with pytest.raises(UnknownOptionError, match="compiler_num_of_core is not an option"):
        qaic.compile(path, "x.json", strict_options=True)


@pytest.mark.parametrize("config", [5, object(), [("aic_num_cores", 4)], b"x", AicCompilerConfig, {1: 2}])
def test_other_forms_are_refused(path, config):
    with pytest.raises((InputTypeError, OptionError), match="config: found"):
        qaic.compile(path, config)


def test_missing_and_damaged_files_of_options(path):
    for name in ("none.yaml", "none.json"):
        with pytest.raises(FileNotFoundError):
            qaic.compile(path, name)
    Path("bad.json").write_text("{")
    with pytest.raises(OptionError, match=r"bad\.json: not valid JSON"):
        qaic.compile(path, "bad.json")


def test_one_options_file_only(path):
    forms_of_options()
    with pytest.raises(OptionConflictError):
        qaic.compile(path, "options.yaml", options_path="other.yaml")


# --- back ends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["HTP", "HTP_MCP", "LPAI"])
def test_other_back_ends_cannot_compile_here(path, backend):
    with pytest.raises(CompileError, match=f"backend {backend} needs Qualcomm's SDK") as caught:
        qaic.compile(path, CompileConfig(backend=backend))
    assert caught.value.code == "compile.backend_unavailable"
    with pytest.raises(CompileError, match=f"backend {backend} needs"):
        qaic.compile(path, backend=backend)


def test_the_configuration_decides_about_the_back_end(path):
    with pytest.raises(CompileError, match="backend HTP"):
        qaic.compile(path, CompileConfig(backend="HTP"), backend="aic")
    assert qaic.compile(path, CompileConfig(backend="AIC"), backend="AIC").target == "cpu"
    with pytest.raises(OptionError, match="backend"):
        qaic.compile(path, backend="TPU")


def test_config_with_fields_without_effect_on_aic_warns(path, caplog):
    config = CompileConfig(
        backend="AIC",
        io_tensor_mem_type="memhandle",
        graph_custom_configs=[{"name": "a"}],
        module_format="bin",
    )
    qaic.compile(path, config)
    assert "that have no effect for AIC: graph_custom_configs, io_tensor_mem_type" in caplog.text


def test_a_float_model_without_a_word_about_fp16_gives_one_hint(path, caplog):
    hint = "convert_to_fp16 is not set"
    qaic.compile(path, CompileConfig(backend="AIC"))
    assert caplog.text.count(hint) == 1
    caplog.clear()
    for config in (
        CompileConfig(backend="AIC", compiler_custom_configs=AicCompilerConfig(convert_to_fp16=False)),
        {"aic_num_cores": 2},
        None,
    ):
        qaic.compile(path, config)
    integers = session_models.model(
        [session_models.helper.make_node("Neg", ["x"], ["y"])], [("x", "int32", [2])], [("y", "int32", [2])]
    )
    qaic.compile(integers, AicCompilerConfig())
    assert hint not in caplog.text


# --- output folder ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["net", "net.bin", "net_backend.bin"])
def test_binaries_of_the_back_end(path, tmp_path, name):
    qpc = qaic.compile(path, CompileConfig(backend="AIC", backend_binary_path=name))
    assert qpc.path.resolve() == tmp_path / "net_backend.bin"
    assert content(qpc) == content(qaic.compile(path))
    qpc = qaic.compile(path, CompileConfig(backend="AIC", backend_binary_path=str(tmp_path / "deep" / name)))
    assert qpc.path == tmp_path / "deep" / "net_backend.bin"
    qpc = qaic.compile(path, CompileConfig(backend="AIC", backend_binary_path=name), output_dir="out")
    assert sorted(entry.name for entry in Path("out").iterdir()) == ["net_backend.bin", "programqpc.bin"]
    assert qpc.path == Path("out") / "net_backend.bin"


def test_a_folder_of_its_own(path):
    assert qaic.compile(path, output_dir="out").path == Path("out/programqpc.bin")


def test_a_file_is_no_folder(path):
    with pytest.raises(OptionError, match=r"output_dir: .* cannot be used: it is a file"):
        qaic.Session(path, output_dir=path)


def test_a_large_container_in_a_folder_has_no_copy_in_the_cache(path, tmp_path, monkeypatch):
    monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / "cache"))
    expected = content(qaic.compile(path, output_dir="small", aic_num_cores=2))
    monkeypatch.setattr(driver, "_WRITTEN_ONCE_BYTES", path.stat().st_size)

    def programs():
        return sorted((tmp_path / "cache").glob("*/programqpc.bin"))

    (kept,) = programs()
    kept.unlink()
    for _ in range(2):
        assert content(qaic.compile(path, output_dir="large", aic_num_cores=2)) == expected
        assert not programs()
    # A cached program is used; a container without a folder is only in the cache.
    assert content(qaic.compile(path, aic_num_cores=2)) == expected
    assert content(qaic.compile(path, output_dir="again", aic_num_cores=2)) == expected
    assert len(programs()) == 1
    monkeypatch.setattr(driver, "_WRITTEN_ONCE_BYTES", path.stat().st_size + 1)
    qaic.compile(path, output_dir="small", aic_num_cores=3)
    assert len(programs()) == 2


def test_nothing_is_left_of_a_failure(tmp_path):
    bad = session_models.model(
        [session_models.helper.make_node("NonZero", ["x"], ["y"])],
        [("x", "float32", [2])],
        [("y", "int64", None)],
    )
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CompileError):
        qaic.compile(bad, CompileConfig(backend="AIC", backend_binary_path="deep/er/net"))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_place_that_cannot_be_written_is_refused_before_any_work(path, tmp_path, monkeypatch):
    monkeypatch.setattr(compilation, "compile_resolved", lambda *_, **__: pytest.fail("worked"))
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="backend_binary_path: 'file' cannot be used: it is a file"):
        qaic.compile(path, CompileConfig(backend="AIC", backend_binary_path="file/net"))
    (tmp_path / "net_backend.bin").mkdir()
    with pytest.raises(OptionError, match="is a folder, a file is expected"):
        qaic.compile(path, CompileConfig(backend="AIC", backend_binary_path="net"))


# --- log levels ---------------------------------------------------------------------------------------------


def test_a_log_level_that_is_set_holds_while_compiling(path, monkeypatch):
    logger = logging.getLogger("qaic")
    before = logger.level
    seen = []
    real = compilation.compile_resolved

    def spy(*arguments, **keywords):
        seen.append(logger.level)
        return real(*arguments, **keywords)

    monkeypatch.setattr(compilation, "compile_resolved", spy)
    for keywords in ({"log_level": "error"}, {"log_level": "debug"}, {}):
        qaic.compile(path, CompileConfig(backend="AIC", **keywords))
    assert seen == [logging.ERROR, logging.DEBUG, before]
    assert logger.level == before


def test_of_several_log_levels_the_most_talkative_counts_and_none_stays():
    logger = logging.getLogger("qaic")
    before = logger.level
    inside, done = threading.Barrier(2), threading.Barrier(2)

    def talk():
        with compilation._log_level(logging.DEBUG):
            inside.wait(WATCHDOG_S)
            done.wait(WATCHDOG_S)

    other = threading.Thread(target=talk)
    with compilation._log_level(logging.ERROR):
        assert logger.level == logging.ERROR
        other.start()
        inside.wait(WATCHDOG_S)
        assert logger.level == logging.DEBUG
    assert logger.level == logging.DEBUG
    done.wait(WATCHDOG_S)
    other.join(WATCHDOG_S)
    assert logger.level == before


def test_mx_formats_are_those_of_a_custom_io_file(path):
    formats = {
        "graphs": [
            {
                "graph_name": "net",
                "tensors": [{"tensor_name": "y", "dataFormat": "QNN_TENSOR_DATA_FORMAT_MX"}],
            }
        ]
    }
    qpc = qaic.compile(path, CompileConfig(backend="AIC", data_format_config=formats))
    expected = qaic.compile(path, custom_io_list_file=[{"IOName": "y", "Precision": "mxint8"}])
    assert content(qpc) == content(expected)
    # One scale and 32 elements for each started block of 32.
    assert qpc.buffer_mappings[1].size == 2 * 33


def test_every_option_of_a_configuration_is_recorded(path):
    fields = {
        "max_out_channel_split": "1",
        "overlap_split_factor": 2,
        "force_vtcm_spill": False,
        "direct_api": True,
        "hardware_version": "ai100",
        "compilation_target": "hardware",
        "pmu_recipe_opt": "AxiRd",
        "graph_names": ["one"],
    }
    assert qaic.compile(path, AicCompilerConfig(**fields)).options == {
        "mos": [1],
        "ols": 2,
        "force_vtcm_spill": False,
        "direct_api": True,
        "aic_hw_version": "ai100",
        "aic_hw": True,
        "aic_pmu_recipe": "AxiRd",
        "graph_names": ["one"],
    }
