"""Every rule between options, violated and satisfied, and the names of options in its message."""

from __future__ import annotations

import json

import numpy as np
import pytest

from qaic.errors import OptionConflictError
from qaic.options import resolve
from qaic.options.argv import read_argv
from qaic.options.conflicts import RULES
from qaic.options.rules import Severity

MDP = {"partitions": [{"name": "P", "devices": [{"deviceId": 0}, {"deviceId": 1}]}]}
ONE_OF_TWO_CORES = {"partitions": [{"name": "P", "devices": [{"deviceId": 0, "numCores": 2}]}]}
SIZES = [{"n": 1}, {"n": 2}]
SAMPLES = [{"x": np.zeros(1, np.float32)}]

# Rule, options that violate it, and nearly equal options that satisfy it.
BROKEN = [
    ("metrics_and_profiling", {"enable_metrics": 1, "enable_profiling": 1}, {"enable_profiling": 1}),
    ("container_needed", {"compile": False}, {"compile": True}),
    ("needs_sdk", {"io_encrypt": "x"}, {"io_encrypt": "x", "target": "card"}),
    ("profile_sources", {"dump_profile": "p", "convert_to_quantize": 1}, {"convert_to_quantize": 1}),
    ("preprocessing", {"host_preproc": 1, "aic_preproc": 1}, {"host_preproc": 0, "aic_preproc": 1}),
    (
        "device_preprocessing_of_graphs",
        {"aic_preproc": 1, "network_specialization_config": SIZES},
        {"aic_preproc": 0, "network_specialization_config": SIZES},
    ),
    ("pmu", {"aic_pmu_recipe": "AxiRd", "aic_pmu_events": "3F"}, {"aic_pmu_events": "3F"}),
    (
        "partition_files",
        {"mdp_load_partition_config": MDP, "mdp_dump_partition_config": "x"},
        {"mdp_dump_partition_config": "x"},
    ),
    (
        "functions",
        {"sub_functions": 1, "always_expand_onnx_functions": 1},
        {"sub_functions": 1, "always_expand_onnx_functions": 0},
    ),
    (
        "random_samples",
        {"convert_to_quantize": 1, "calibration_data": SAMPLES, "use_random_input_data": 1},
        {"convert_to_quantize": 1, "calibration_data": SAMPLES, "use_random_input_data": 0},
    ),
    ("clusters", {"aic_num_cores": 8, "sdp_cluster_sizes": "4,2"}, {"aic_num_cores": 8, "mos": 8}),
    ("clusters", {"aic_num_cores": 4, "mos": 5}, {"aic_num_cores": 4, "mos": 4}),
    (
        "clusters",
        {"aic_num_cores": 4, "mos": "1,2"},
        {"aic_num_cores": 4, "mos": "1,2", "sdp_cluster_sizes": "2,2"},
    ),
    (
        "same_kind",
        {"execute_nodes_in_fp16": "Add,Mul", "keep_original_precision_for_nodes": "mul"},
        {"execute_nodes_in_fp16": "Add,Mul", "keep_original_precision_for_nodes": "Div"},
    ),
    (
        "same_kind",
        {"execute_nodes_in_fp16": "FullyConnected", "keep_original_precision_for_nodes": "Gemm,Add"},
        {"execute_nodes_in_fp16": "FullyConnected", "keep_original_precision_for_nodes": "MatMul"},
    ),
    (
        "schemas",
        {
            "convert_to_quantize": 1,
            "quantization_schema": "symmetric",
            "quantization_schema_constants": "asymmetric",
        },
        {
            "convert_to_quantize": 1,
            "quantization_schema": "symmetric",
            "quantization_schema_constants": "symmetric",
        },
    ),
    (
        "graph_names",
        {"graph_names": ["a"], "network_specialization_config": SIZES},
        {"graph_names": ["a", "b"], "network_specialization_config": SIZES},
    ),
    ("graph_names", {"graph_names": ["a", "b"]}, {"graph_names": ["a"]}),
    ("state", {"mxint8_kv_cache": 1}, {"mxint8_kv_cache": 1, "retained_state": 1}),
    ("state", {"split_retained_state_io": 1}, {"split_retained_state_io": 1, "retained_state": 1}),
    ("crc_sections", {"io_crc_stride": 8}, {"io_crc_stride": 8, "io_crc": 1}),
    (
        "whole_caches",
        {"whole_caches": 1},
        {"whole_caches": 1, "retained_state": 1},
    ),
    (
        "exclude_without_mxfp6",
        {"exclude_mxfp6_matmul": "a b"},
        {"exclude_mxfp6_matmul": "a b", "mxfp6_matmul": 1},
    ),
    ("depth_first", {"aic_depth_first_mem": 8}, {"aic_depth_first_mem": 8, "aic_enable_depth_first": 1}),
    ("quantization", {"enable_rowwise": 1}, {"enable_rowwise": 1, "convert_to_quantize": 1}),
    ("mismatch", {"allow_profile_mismatch": 1}, {"allow_profile_mismatch": 0}),
    ("samples_unused", {"calibration_data": SAMPLES}, {"calibration_data": SAMPLES, "dump_profile": "p"}),
    (
        "percentile",
        {"convert_to_quantize": 1, "percentile_calibration_value": 99},
        {
            "convert_to_quantize": 1,
            "percentile_calibration_value": 99,
            "quantization_calibration": "Percentile",
        },
    ),
    (
        "bins_of_kl",
        {
            "convert_to_quantize": 1,
            "quantization_calibration": "KLMinimizationV2",
            "num_histogram_bins": 254,
        },
        {
            "convert_to_quantize": 1,
            "quantization_calibration": "KLMinimizationV2",
            "num_histogram_bins": 255,
        },
    ),
    (
        "int16",
        {"convert_to_quantize": 1, "quantization_precision": "Int16"},
        {"convert_to_quantize": 1, "quantization_precision": "Int8"},
    ),
    (
        "clip_without_fp16",
        {"clip_fp16_constants": 1},
        {"clip_fp16_constants": 1, "execute_nodes_in_fp16": "Add"},
    ),
    (
        "cores_of_partitions",
        {"mdp_load_partition_config": ONE_OF_TWO_CORES},
        {"mdp_load_partition_config": MDP},
    ),
    (
        "several_devices",
        {"allow_mxint8_mdp_io": 1},
        {"allow_mxint8_mdp_io": 1, "mdp_load_partition_config": MDP},
    ),
    ("measured", {"ddr_stats": 1, "stats_level": 39}, {"ddr_stats": 1, "stats_level": 40}),
    (
        "unknown_for_card",
        {"allow_unknown_options": 1},
        {"allow_unknown_options": 1, "target": "card"},
    ),
]  # fmt: skip

# The same with flags, for options that only the tools have.
FLAGS = [
    ("length_of_run", ["-num-iter=1", "-time=2"], ["-time=2"]),
    (
        "written_outputs",
        ["-write-output-num-samples=2"],
        ["-write-output-num-samples=2", "-write-output-dir=x"],
    ),
    ("profiled_run", ["-aic-profiling-out-dir=x"], ["-aic-profiling-out-dir=x", "-aic-profiling-type=trace"]),
    ("compile_only", ["-compile-only", "-num-iter=3"], ["-num-iter=3"]),
]  # fmt: skip

# Rules whose options are files; each has a separate test below.
WITH_FILES = {"samples", "list_or_random", "bfloat16"}

SEVERITY = {rule.name: rule.severity for rule in RULES}


def outcome(keywords, flags=()):
    """Return the names of violated rules that are errors, and the warnings."""
    try:
        result = resolve(keywords, options_path=None, model_is_container=False, flags=read_argv(flags))
    except OptionConflictError as error:
        return error.context["rules"], [], str(error)
    return [], list(result.warnings), "\n".join(result.warnings)


def check(rule, broken, kept):
    errors, warnings, text = outcome(*broken)
    if SEVERITY[rule] is Severity.ERROR:
        assert errors == [rule]
    else:
        assert (errors, len(warnings)) == ([], 1)
    names = [name for name in broken[0] if name not in {"convert_to_quantize", "aic_num_cores"}]
    names += [flag.partition("=")[0] for flag in broken[1]]
    assert any(name in text for name in names)
    assert outcome(*kept)[:2] == ([], [])


@pytest.mark.parametrize(("rule", "broken", "kept"), BROKEN)
def test_rule_is_broken_and_kept(rule, broken, kept):
    check(rule, (broken, ()), (kept, ()))


@pytest.mark.parametrize(("rule", "broken", "kept"), FLAGS)
def test_rule_of_the_tools_is_broken_and_kept(rule, broken, kept):
    check(rule, ({}, broken), ({}, kept))


def test_every_rule_is_tested():
    assert {rule for rule, _, _ in (*BROKEN, *FLAGS)} | WITH_FILES == set(SEVERITY)
    assert len(SEVERITY) == len(RULES)


def test_a_list_of_samples_excludes_data_and_beats_random_data(tmp_path):
    file = tmp_path / "list.txt"
    file.write_text("a.raw\n")
    given = {"convert_to_quantize": True, "input_list_file": file}
    check("samples", ({**given, "calibration_data": SAMPLES}, ()), (given, ()))
    check("list_or_random", ({**given, "use_random_input_data": True}, ()), (given, ()))


def test_bfloat16_needs_the_hardware_that_has_it(tmp_path):
    file = tmp_path / "io.yaml"
    file.write_text("- IOName: x\n  Precision: bfloat16\n")
    given = {"custom_io_list_file": str(file)}
    check("bfloat16", (given, ()), ({**given, "aic_hw_version": "ai200"}, ()))
    assert outcome({**given, "aic_hw_version": 2.0})[0] == ["bfloat16"]


def test_samples_and_int16_of_a_command_line_need_no_excuse():
    flags = ["-use-random-input-data", "-convert-to-fp16"]
    assert outcome({}, flags)[:2] == ([], [])
    assert outcome({}, ["-convert-to-quantize", "-quantization-precision=Int16"])[:2] == ([], [])


def test_all_broken_rules_are_in_one_error_before_any_warning(caplog):
    given = {
        "enable_metrics": True,
        "enable_profiling": True,
        "sub-functions": True,
        "always-expand-onnx-functions": True,
        "enable_rowwise": True,
    }
    with pytest.raises(OptionConflictError) as caught:
        resolve(given, options_path=None, model_is_container=False)
    assert str(caught.value).splitlines() == [
        "2 rules between options are violated:",
        "  enable_metrics and enable_profiling exclude each other: "
        "profiling also records the metrics, so omit enable_metrics",
        "  sub-functions and always-expand-onnx-functions exclude each other: "
        "each is the opposite of the other",
    ]
    assert caught.value.code == "option.conflict"
    assert caplog.records == []


def test_clusters_report_everything_that_is_wrong():
    given = {"aic_num_cores": 4, "sdp_cluster_sizes": [4, 4], "mos": [1, 2, 8]}
    with pytest.raises(OptionConflictError) as caught:
        resolve(given, options_path=None, model_is_container=False)
    assert str(caught.value) == (
        "the sum of sdp_cluster_sizes is 8, aic_num_cores is 4; "
        "mos has 3 values; one is expected, or one for each of the 2 clusters of sdp_cluster_sizes; "
        "mos of 8 is more than aic_num_cores of 4"
    )
    assert caught.value.code == "option.clusters"


def test_options_of_a_command_line_are_named_as_flags():
    assert outcome({}, ["-mos=4"])[2] == "-mos of 4 is more than -aic-num-cores of 1"
    assert outcome({}, ["-io-crc-stride=8"])[2] == "-io-crc-stride needs -io-crc"
    assert outcome({}, ["-exclude-mxfp6-matmul=a"])[2] == (
        "-exclude-mxfp6-matmul has no effect without -mxfp6-matmul"
    )


def test_two_names_of_one_kind_are_shown():
    with pytest.raises(OptionConflictError, match=r"both list fullyconnected \(Gemm\): keep one of them"):
        resolve(
            {"execute_nodes_in_fp16": "fullyconnected,Add", "keep_original_precision_for_nodes": "Gemm"},
            options_path=None,
            model_is_container=False,
        )


def test_one_schema_stands_for_two():
    result = resolve(
        {"convert_to_quantize": True, "quantization_schema": "asymmetric"},
        options_path=None,
        model_is_container=False,
    ).compile
    assert result.quantization_schema_activations == "asymmetric"
    assert result.quantization_schema_constants == "asymmetric"


def test_settings_without_quantization_share_one_warning(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text(json.dumps({"enable-channelwise": True, "num_histogram_bins": 64}))
    result = resolve({"enable_rowwise": True}, options_path=file, model_is_container=False)
    place = f"({file}, line 1)"
    assert result.warnings == (
        f"num_histogram_bins {place}, enable_rowwise and enable-channelwise {place} have no effect "
        "without convert_to_quantize, load_profile, external_quantization_file or dump_profile",
    )
