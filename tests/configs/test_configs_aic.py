"""The AIC configuration classes: the documented fields; only fields that were set have an effect."""

import copy
import doctest
import importlib
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from generators import config_stub
from qaic import configs
from qaic.configs import AicCompilerConfig, AicConfigHelper, AicRuntimeConfig, aic_models
from qaic.errors import OptionError

# Names and defaults, as in the documentation.
COMPILER_FIELDS = {
    "buffer_dealloc_delay": 2,
    "cluster_sizes": "1 2 0",
    "combine_inputs": True,
    "combine_outputs": True,
    "compilation_target": "hardware",
    "compile_threads": 2,
    "convert_to_fp16": True,
    "crc_stride": 256,
    "direct_api": True,
    "do_ddr_to_multicast": True,
    "do_host_preproc": True,
    "enable_debug": True,
    "enable_depth_first": True,
    "exclude_mxfp6_matmul": "",
    "force_vtcm_spill": True,
    "gen_crc": True,
    "graph_names": [],
    "hardware_version": "2.0",
    "max_out_channel_split": "1 2 0",
    "mdp_dump_partition_config": "mdp_pipeline_template.json",
    "mdp_load_partition_config": "mdp_config.json",
    "mxfp6_matmul_weights": False,
    "mxint8_mdp_io": False,
    "num_of_cores": 1,
    "overlap_split_factor": 2,
    "perf_warnings": True,
    "pmu_events": "1 2 0",
    "pmu_recipe_opt": "KernelUtil",
    "print_ddr_stats": True,
    "print_perf_metrics": True,
    "retained_state": False,
    "size_split_granularity": 1024,
    "stat_level": 10,
    "stats_batch_size": 2,
    "time_passes": True,
    "user_dma_producer_dma_enabled": True,
    "vtcm_working_set_limit_ratio": 1.0,
}
RUNTIME_FIELDS = {
    "device_ids": [],
    "num_activations": 1,
    "submit_num_retries": 5,
    "submit_timeout": 0,
    "threads_per_queue": 4,
}

# Keys of the back-end extension file, in their exact case.
JSON_KEYS = {
    "buffer_dealloc_delay": "compiler_buffer_dealloc_delay",
    "cluster_sizes": "compiler_cluster_sizes",
    "combine_inputs": "compiler_combine_inputs",
    "combine_outputs": "compiler_combine_outputs",
    "compilation_target": "compiler_compilation_target",
    "compile_threads": "compiler_compileThreads",
    "convert_to_fp16": "compiler_convert_to_FP16",
    "crc_stride": "compiler_crc_stride",
    "direct_api": "compiler_directApi",
    "do_ddr_to_multicast": "compiler_do_DDR_to_multicast",
    "do_host_preproc": "compiler_do_host_preproc",
    "enable_debug": "compiler_enableDebug",
    "enable_depth_first": "compiler_enable_depth_first",
    "exclude_mxfp6_matmul": "compiler_exclude_mxfp6_matmul",
    "force_vtcm_spill": "compiler_force_VTCM_spill",
    "gen_crc": "compiler_genCRC",
    "graph_names": "graph_names",
    "hardware_version": "compiler_hardware_version",
    "max_out_channel_split": "compiler_max_out_channel_split",
    "mdp_dump_partition_config": "compiler_mdp_dump_partition_config",
    "mdp_load_partition_config": "compiler_mdp_load_partition_config",
    "mxfp6_matmul_weights": "compiler_mxfp6_matmul_weights",
    "mxint8_mdp_io": "compiler_mxint8_mdp_io",
    "num_of_cores": "compiler_num_of_cores",
    "overlap_split_factor": "compiler_overlap_split_factor",
    "perf_warnings": "compiler_perfWarnings",
    "pmu_events": "compiler_PMU_events",
    "pmu_recipe_opt": "compiler_PMU_recipe_opt",
    "print_ddr_stats": "compiler_printDDRStats",
    "print_perf_metrics": "compiler_printPerfMetrics",
    "retained_state": "compiler_retained_state",
    "size_split_granularity": "compiler_size_split_granularity",
    "stat_level": "compiler_stat_level",
    "stats_batch_size": "compiler_stats_batch_size",
    "time_passes": "compiler_time_passes",
    "user_dma_producer_dma_enabled": "compiler_userDMAProducerDMAEnabled",
    "vtcm_working_set_limit_ratio": "compiler_VTCM_working_set_limit_ratio",
    "device_ids": "runtime_device_ids",
    "num_activations": "runtime_num_activations",
    "submit_num_retries": "runtime_submit_num_retries",
    "submit_timeout": "runtime_submit_timeout",
    "threads_per_queue": "runtime_threads_per_queue",
}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(AicCompilerConfig, COMPILER_FIELDS), (AicRuntimeConfig, RUNTIME_FIELDS)],
    ids=["compiler", "runtime"],
)
def test_fields_and_defaults_are_those_of_the_documentation(kind, expected):
    assert kind().model_dump() == expected


@pytest.mark.parametrize("field", JSON_KEYS)
def test_a_field_is_written_under_its_key(field):
    kind = AicRuntimeConfig if field in RUNTIME_FIELDS else AicCompilerConfig
    value = {**COMPILER_FIELDS, **RUNTIME_FIELDS}[field]
    place = "runtime_config" if kind is AicRuntimeConfig else "compiler_config"
    assert AicConfigHelper.to_backend_extension_dict(**{place: kind(**{field: value})}) == {
        JSON_KEYS[field]: value
    }


def test_nothing_set_is_nothing_asked_for():
    assert AicConfigHelper.to_backend_extension_dict() == {}
    assert AicConfigHelper.to_backend_extension_dict(AicCompilerConfig(), AicRuntimeConfig()) == {}


def test_assignment_counts_as_setting_and_none_does_not():
    config = AicCompilerConfig(num_of_cores=4, stat_level=None)
    config.convert_to_fp16 = False
    config.num_of_cores = None
    assert configs.to_backend_extension_dict(config) == {"compiler_convert_to_FP16": False}


def test_compiler_keys_come_before_runtime_keys():
    written = AicConfigHelper.to_backend_extension_dict(
        AicCompilerConfig(retained_state=True), AicRuntimeConfig(device_ids=[1, 0])
    )
    assert list(written) == ["compiler_retained_state", "runtime_device_ids"]
    assert json.loads(json.dumps(written)) == written


def test_paths_and_lists_are_written_as_the_file_has_them():
    config = AicCompilerConfig(
        mdp_load_partition_config=Path("a") / "b.json", exclude_mxfp6_matmul=["x", "y"], graph_names=["g"]
    )
    assert configs.to_backend_extension_dict(config) == {
        "compiler_exclude_mxfp6_matmul": "x y",
        "graph_names": ["g"],
        "compiler_mdp_load_partition_config": "a/b.json",
    }


@pytest.mark.parametrize(
    "arguments", [("x",), ({"num_of_cores": 1},), (AicRuntimeConfig(),), (None, AicCompilerConfig())]
)
def test_the_helper_refuses_other_objects(arguments):
    with pytest.raises(TypeError, match=r"found type \w+, expected Aic\w+Config or None"):
        AicConfigHelper.to_backend_extension_dict(*arguments)


def test_unknown_fields_name_the_nearest():
    with pytest.raises(ValidationError, match="did you mean num_of_cores") as caught:
        AicCompilerConfig(num_of_core=4, stat_level="x")
    # One error lists all problems.
    assert {error["loc"] for error in caught.value.errors()} == {("stat_level",), ("num_of_core",)}
    config = AicCompilerConfig()
    with pytest.raises(ValidationError, match="did you mean stat_level"):
        config.stats_level = 70
    with pytest.raises(ValidationError, match="there is no such field"):
        AicCompilerConfig(**{"{braces}": 1})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_of_cores", "many"),
        ("convert_to_fp16", "perhaps"),
        ("pmu_recipe_opt", "HmxMacs"),  # an option of the tools that the documented class does not have
        ("graph_names", "model"),
        ("cluster_sizes", [4, 4]),
    ],
)
def test_types_are_checked_in_the_constructor_and_at_assignment(field, value):
    with pytest.raises(ValidationError) as caught:
        AicCompilerConfig(**{field: value})
    assert caught.value.errors()[0]["loc"][0] == field
    config = AicCompilerConfig()
    before = getattr(config, field)
    with pytest.raises(ValidationError):
        setattr(config, field, value)
    assert getattr(config, field) == before
    assert not config.model_fields_set


def test_values_out_of_range_are_not_the_business_of_the_class():
    assert AicCompilerConfig(num_of_cores=400).num_of_cores == 400


def test_the_constructor_takes_json_keys_too():
    config = AicCompilerConfig(compiler_num_of_cores=4, compiler_convert_to_FP16=True)
    assert (config.num_of_cores, config.convert_to_fp16) == (4, True)
    assert config.model_fields_set == {"num_of_cores", "convert_to_fp16"}
    with pytest.raises(ValidationError, match="by its name and by its JSON key"):
        AicCompilerConfig(compiler_num_of_cores=4, num_of_cores=4)


def test_pydantic_writes_json_keys_as_aliases():
    config = AicCompilerConfig(stat_level=70)
    assert config.model_dump(by_alias=True, exclude_unset=True) == {"compiler_stat_level": 70}


@pytest.mark.parametrize("renew", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_copies_keep_what_was_set(renew):
    config = AicCompilerConfig(graph_names=["a"], num_of_cores=2)
    again = renew(config)
    assert again == config
    assert again.model_fields_set == config.model_fields_set
    assert type(again) is AicCompilerConfig


def test_derived_classes_work():
    class Ours(AicCompilerConfig):
        """A class with another default."""

    assert configs.to_backend_extension_dict(Ours(num_of_cores=8)) == {"compiler_num_of_cores": 8}


def test_lists_of_options(capsys):
    assert AicConfigHelper.list_config_types() == {"compiler", "runtime"} == configs.list_config_types()
    for listing in (
        AicConfigHelper.list_config_options,
        configs.list_config_options,
        AicCompilerConfig.list_config_options,
    ):
        assert listing() is None
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == len(COMPILER_FIELDS) + len(RUNTIME_FIELDS)
        assert "AicCompilerConfig.num_of_cores: int" in lines
        assert "AicCompilerConfig.pmu_recipe_opt: Literal['AxiRd', 'AxiWr', 'AxiRdWr', 'KernelUtil']" in lines
        assert "AicRuntimeConfig.device_ids: list[int]" in lines
    assert configs.shared_library_path() == "libQnnAicNetRunExtensions.so"


def test_reading_is_the_inverse_of_writing_and_keeps_other_keys():
    data = {
        "compiler_stat_level": 70,
        "graph_names": ["a"],
        "runtime_num_activations": 2,
        "runtime_process_lock": "x",
        "compiler_hardware_version": None,
    }
    compiler, runtime, others = AicConfigHelper.from_backend_extension_dict(data)
    assert compiler == AicCompilerConfig(stat_level=70, graph_names=["a"])
    assert runtime == AicRuntimeConfig(num_activations=2)
    assert others == {"runtime_process_lock": "x"}


@pytest.mark.parametrize(("value", "expected"), [(3, [3]), ([3, 4], [3, 4])])
def test_the_older_key_of_devices_is_read(value, expected):
    _, runtime, others = AicConfigHelper.from_backend_extension_dict({"runtime_device_id": value})
    assert runtime.device_ids == expected
    assert not others
    assert configs.to_backend_extension_dict(runtime_config=runtime) == {"runtime_device_ids": expected}


def test_wrong_values_in_a_dictionary_are_listed_by_their_keys():
    with pytest.raises(OptionError) as caught:
        AicConfigHelper.from_backend_extension_dict(
            {"compiler_num_of_cores": "many", "compiler_genCRC": [], "compiler_exclude_mxfp6_matmul": 5}
        )
    text = str(caught.value)
    assert "compiler_num_of_cores: " in text
    assert "found 'many'" in text
    assert "compiler_genCRC: " in text
    assert text.count("compiler_exclude_mxfp6_matmul") == 1
    assert caught.value.code == "option.invalid_value"


def test_the_stub_is_up_to_date():
    path = Path(aic_models.__file__).with_suffix(".pyi")
    assert path.read_text() == config_stub.render()


def test_every_public_name_is_there():
    for name in configs.__all__:
        assert getattr(configs, name).__module__.startswith("qaic.")
    assert set(dir(configs)) == set(configs.__all__)
    with pytest.raises(AttributeError, match="no attribute 'CompileConfigs'"):
        _ = configs.CompileConfigs


def test_importing_the_package_does_not_load_pydantic():
    program = "import sys, qaic, qaic.configs; qaic.compile; print('pydantic' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert shown == "False\n"


@pytest.mark.parametrize(
    "name", ["configs", "configs.aic", "configs.aic_models", "configs.compile_config", "compat"]
)
def test_examples_in_docstrings_run(name):
    result = doctest.testmod(importlib.import_module(f"qaic.{name}"))
    assert result.attempted
    assert not result.failed


def test_types_are_written_as_in_a_source():
    assert aic_models.type_text(str | None) == "str"
    assert aic_models.type_text(list[int] | None, optional=True) == "list[int] | None"
