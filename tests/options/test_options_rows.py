"""Every row of the table: a valid value, an invalid value, and its documentation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from generators.options_page import INFERRED_FLAGS
from qaic.errors import OptionError
from qaic.options import resolve
from qaic.options.argv import read_argv
from qaic.options.codecs.structures import ModelInput
from qaic.options.files.custom_io import CustomIo
from qaic.options.files.node_precision import NodePrecision
from qaic.options.files.parsed_file import InputFileContent
from qaic.options.files.partitions import Partition, PartitionConfig
from qaic.options.files.specializations import SpecializationEntry
from qaic.options.spec import Effect, Flag, FlagForm, JsonForm, Stage
from qaic.options.table import SPECS, find

BY_NAME = {spec.name: spec for spec in SPECS}

#: A file with the content "content", and the value that it gives.
FILE = object()
CONTENT_SHA256 = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"

SWITCH = ([("yes", True), (0, False)], ["maybe", 2, 1.0])
NAMES = ([("a, b", ("a", "b")), (["a,b"], ("a,b",)), ("", ())], [1.5j, {"a": 1}, ["a", ""], "a,,b"])
PATH = ([("x/y", Path("x/y")), (Path("z"), Path("z"))], ["", " ", 3, "a\0b"])
INPUT_FILE = ([(FILE, FILE)], ["missing.file", "", 3, "."])
SCHEMA = (
    [("Asymmetric", "asymmetric"), ("symmetric_with_power2_scale", "symmetric_with_power2_scale")],
    ["affine", "", 1],
)
COUNT = ([("1", 1), (2**31 - 1, 2**31 - 1), ("1_0", 10)], [0, -1, 2**31, "1.0", "x", True, 1.0])
FROM_ZERO = ([("0", 0), (2**31 - 1, 2**31 - 1)], [-1, 2**31, "1.0", "x", True])
TEXT = ([("x", "x"), (2.0, "2.0")], ["", " ", ["x"], True])
FP16_INPUT = (ModelInput("x", "float16", (1, 2)),)
MDP = {"partitions": [{"name": "P", "devices": [{"deviceId": 0}]}]}

# Values that a row accepts, with the results, and values that it refuses.
ROWS = {
    "model_path": PATH,
    "options_path": ([], ["", 3]),
    "backend": ([("AIC", "aic"), ("qaic", "qaic")], ["htp", "", 1]),
    "compile": ([("on", True)], ["maybe", 2]),
    "strict_options": SWITCH,
    "output_dir": PATH,
    "output_node_names": NAMES,
    "extra_output_tensors": NAMES,
    "all_intermediate_outputs": SWITCH,
    "model_inputs": (
        [
            ({"input_name": "x", "input_type": "half", "input_shape": [1, 2]}, FP16_INPUT),
            ("x,float,[]", (ModelInput("x", "float32", ()),)),
        ],
        ["x", "x,float,[-1]", "x,complex,[1]", {"input_name": "x"}, 3],
    ),
    "output_shapes": (
        [
            ({"y": [1, "n"]}, {"y": (1, "n")}),
            ({"y": []}, {"y": ()}),
            ("y,[1, n,2*n]", {"y": (1, "n", "2*n")}),
            (["y,[1]", "z,[]"], {"y": (1,), "z": ()}),
            (["y,[1]", "y,[1]"], {"y": (1,)}),
        ],
        ["y", "y,1,2", {"y": 3}, {"y": "12"}, {"y": [-1]}, {"y": [1.5]}, {"": [1]}, 7, ["y,[1]", "y,[2]"]],
    ),
    "onnx_define_symbol": (
        [
            ({"on": 2}, {"on": 2}),
            ([("batch", 2), ("seq", "3")], {"batch": 2, "seq": 3}),
            (["batch,2"], {"batch": 2}),
            ("batch,2", {"batch": 2}),
            ("batch 2 seq 3", {"batch": 2, "seq": 3}),
        ],
        ["batch", {"batch": 0}, "batch 2 seq", [("batch", 1), ("batch", 2)], 3],
    ),
    "dynamic_shape_input": NAMES,
    "always_expand_onnx_functions": SWITCH,
    "batchsize": COUNT,
    "network_specialization_config": (
        [([{"seq_len": "1"}], (SpecializationEntry("Decode", {"seq_len": 1}),))],
        ["missing.json", [{"s": 0}], 3],
    ),
    "custom_io_list_file": (
        [([{"IOName": "x", "Precision": "float16"}], (CustomIo("x", precision="float16"),))],
        ["missing.yaml", [{"IOName": "x", "Precision": "float8"}], [{"IoNam": "x"}], 3],
    ),
    "dump_custom_io_config_template_file": PATH,
    "retained_state": SWITCH,
    "split_retained_state_io": ([(False, False)], ["maybe"]),
    "whole_caches": ([(True, True), (False, False)], ["maybe"]),
    "stored_weights": ([(True, True), (False, False)], ["maybe"]),
    "split_model_io": SWITCH,
    "sub_functions": SWITCH,
    "register_custom_op": ([([FILE], (FILE,))], ["missing.yaml", 3, [""]]),
    "load_embedding_tables": INPUT_FILE,
    "dump_embedding_tables": PATH,
    "host_preproc": SWITCH,
    "aic_preproc": SWITCH,
    "compile_only": SWITCH,
    "aic_hw": ([("Hardware", True), ("0", False)], ["simulator", 2]),
    "aic_hw_version": (
        [(2.0, "2.0"), ("2.0", "2.0"), (2, "2.0"), ("AI200", "ai200")],
        ["3.0", 1.0, "", True],
    ),
    "graph_names": ([("a", ("a",)), (["b"], ("b",))], [["a", "a"], 3, [""]]),
    "qpc_crc": SWITCH,
    "io_encrypt": ([], ["", "x"]),
    "target": ([("CPU", "cpu"), ("card", "card")], ["gpu", ""]),
    "allow_unknown_options": ([(0, False)], ["maybe"]),
    "strict_aic": SWITCH,
    "aic_operator_list": INPUT_FILE,
    "convert_to_fp16": SWITCH,
    "clip_fp16_constants": ([(0, False)], ["maybe"]),
    "execute_nodes_in_fp16": NAMES,
    "node_precision_info_file": (
        [({"FP16NodeInstanceNames": ["a"]}, NodePrecision(("a",), ()))],
        ["missing.yaml", {"FP16": ["a"]}, {"FP16NodeInstanceNames": ["a"], "FP32NodeInstanceNames": ["a"]}],
    ),
    "keep_original_precision_for_nodes": NAMES,
    "mxfp6_matmul": SWITCH,
    "exclude_mxfp6_matmul": ([("", ()), ([], ())], [3, [""]]),
    "allow_mxint8_mdp_io": ([(0, False)], ["maybe"]),
    "mxint8_kv_cache": ([(0, False)], ["maybe"]),
    "external_quantization_file": INPUT_FILE,
    "quantization_schema_activations": SCHEMA,
    "quantization_schema_constants": SCHEMA,
    "quantization_schema": SCHEMA,
    "quantization_calibration": (
        [("none", "None"), ("klminimizationv2", "KLMinimizationV2"), ("MSE", "MSE")],
        ["Entropy", "", 3],
    ),
    "percentile_calibration_value": ([("99.5", 99.5), (90, 90.0)], [89.9, 100.1, "nan", "x", True]),
    "num_histogram_bins": ([(32, 32), ("65_536", 65536)], [31, 65537, "x"]),
    "quantization_precision": ([("int8", "Int8"), ("Int16", "Int16")], ["Int4", ""]),
    "quantization_precision_bias": ([("int8", "Int8"), ("Int32", "Int32")], ["Int16", ""]),
    "enable_rowwise": SWITCH,
    "enable_channelwise": SWITCH,
    "dump_profile": PATH,
    "load_profile": INPUT_FILE,
    "convert_to_quantize": SWITCH,
    "profiling_threads": COUNT,
    "input_list_file": INPUT_FILE,
    "use_random_input_data": (
        [(True, "uniform"), ("Gaussian", "gaussian"), ("uniform", "uniform"), (False, None)],
        ["poisson", 2, ""],
    ),
    "calibration_data": ([([{"x": np.zeros(1)}], None)], ["x", {"x": np.zeros(1)}, 3, b"x"]),
    "allow_profile_mismatch": ([(0, False)], ["maybe"]),
    "aic_num_cores": ([("1", 1), (np.int64(16), 16), ("010", 10)], [0, 17, "x", 1.0, True]),
    "mos": ([(1, (1,)), ("1", (1,)), (-1, ()), ("-1", ())], [0, 17, "1,x", [1, 1, 1, 1, 1], True, 1.0]),
    "ols": COUNT,
    "ols_config": INPUT_FILE,
    "mdts_mos": COUNT,
    "allocator_dealloc_delay": ([(0, 0), (10, 10)], [-1, 11, "x"]),
    "size_split_granularity": ([(512, 512), (2048, 2048)], [511, 2049, "x"]),
    "vtcm_working_set_limit_ratio": ([(0, 0.0), ("1.0", 1.0), ("2.5e-1", 0.25)], [-0.1, 1.1, "inf", "x"]),
    "force_vtcm_spill": SWITCH,
    "aic_enable_depth_first": SWITCH,
    "aic_depth_first_mem": ([(8, 8), (32, 32)], [7, 33, "x"]),
    "sdp_cluster_sizes": ([("1", (1,)), ([1], (1,)), (" 1 ", (1,))], [["x"], [0], [1, 1, 1, 1, 1], 17, 1]),
    "multicast_weights": SWITCH,
    "use_producer_dma": SWITCH,
    "combine_inputs": SWITCH,
    "combine_outputs": SWITCH,
    "direct_api": SWITCH,
    "compile_threads": COUNT,
    "user_tiled": SWITCH,
    "mdp_load_partition_config": (
        [(MDP, PartitionConfig((Partition("P", (0,), (None,), None),), ()))],
        ["missing.json", {"partitions": []}, 3],
    ),
    "mdp_dump_partition_config": PATH,
    "stats_level": FROM_ZERO,
    "stats_batchsize": COUNT,
    "ddr_stats": SWITCH,
    "aic_pmu_recipe": ([("kernelutil", "KernelUtil"), ("HmxMacs", "HmxMacs")], ["All", ""]),
    "aic_pmu_events": (
        [("3F,70", (0x3F, 0x70)), ("3f 70", (0x3F, 0x70)), (["0x200", 7], (0x200, 7)), ("", ())],
        ["3G", 70, "1,2,3,4,5,6,7,8,9", "123456789", [-1]],
    ),
    "aic_perf_warnings": SWITCH,
    "aic_perf_metrics": SWITCH,
    "time_passes": SWITCH,
    "enable_debug": SWITCH,
    "io_crc": SWITCH,
    "io_crc_stride": ([], [0, "x"]),
    "verbose": ([(0, 0), ("3", 3)], [-1, 4, "x"]),
    "dev_id": ([("3", 3), ("0:1", (0, 1)), ([1, 0], (1, 0)), ([], 0)], [-1, "x", [0, 0], 2**31]),
    "num_activations": COUNT,
    "set_size": COUNT,
    "submit_timeout": FROM_ZERO,
    "submit_num_retries": FROM_ZERO,
    "threads_per_queue": COUNT,
    "oversubscription_name": TEXT,
    "enable_metrics": SWITCH,
    "enable_profiling": SWITCH,
    "allow_hw_mismatch": SWITCH,
    "process_lock": TEXT,
}

# The same for options that only the tools have, as the text of a flag.
TOOL_ROWS = {
    "json_input_file": (("x.json", Path("x.json")), ""),
    "aic_num_of_instances": (("2", 2), "0"),
    "num_iter": (("2", 2), "0"),
    "time": (("0.5", 0.5), "-1"),
    "write_output_dir": (("out", Path("out")), ""),
    "write_output_start_iter": (("0", 0), "x"),
    "write_output_num_samples": (("1", 1), "0"),
    "aic_profiling_type": (("TRACE", ("trace",)), "events"),
    "aic_profiling_out_dir": (("out", Path("out")), ""),
    "aic_profiling_num_samples": (("1", 1), "0"),
    "aic_profiling_start_iter": (("1", 1), "-1"),
    "aic_profiling_start_delay": (("0", 0), "x"),
    "operators_supported": (("ONNX", "onnx"), "mxnet"),
    "help": (None, "1"),
}


def resolved(given, flags=()):
    return resolve(given, options_path=None, model_is_container=False, flags=flags)


def attribute(result, spec):
    groups = {
        Stage.SESSION: "session",
        Stage.COMPILE: "compile",
        Stage.RUNTIME: "runtime",
        Stage.CLI: "run_step",
    }
    return getattr(getattr(result, groups[spec.stage]), spec.name)


def test_every_row_is_tested():
    assert ROWS.keys() | TOOL_ROWS.keys() == BY_NAME.keys()


@pytest.mark.parametrize("name", ROWS)
def test_row_takes_its_values(name, tmp_path):
    file = tmp_path / "content"
    file.write_text("content")
    spec = BY_NAME[name]
    for given, becomes in ROWS[name][0]:
        raw = _with_file(given, str(file))
        expected = _with_file(becomes, InputFileContent(file, CONTENT_SHA256))
        result = attribute(resolved({name: raw}), spec)
        if name == "calibration_data":
            assert result is raw
            continue
        assert result == expected
        # A flag with this text means the same.
        if isinstance(raw, str) and spec.flag is not None and spec.flag.form is not FlagForm.REPEAT:
            assert attribute(resolved({}, read_argv([f"-{spec.flag.text}={raw}"])), spec) == expected


def _with_file(value, file):
    if value is FILE:
        return file
    return type(value)([file]) if value in ([FILE], (FILE,)) else value


@pytest.mark.parametrize("name", ROWS)
def test_row_refuses_what_it_cannot_use_and_says_what_it_expected(name):
    for wrong in ROWS[name][1]:
        with pytest.raises(OptionError) as caught:
            resolved({name: wrong})
        assert name in str(caught.value)
        assert name in caught.value.context["options"]


@pytest.mark.parametrize("name", TOOL_ROWS)
def test_row_of_the_tools_takes_and_refuses(name):
    flag = BY_NAME[name].flag.text
    taken, wrong = TOOL_ROWS[name]
    argument, expected = (f"-{flag}", True) if taken is None else (f"-{flag}={taken[0]}", taken[1])
    assert attribute(resolved({}, read_argv([argument])), BY_NAME[name]) == expected
    with pytest.raises(OptionError, match=f"-{flag}"):
        resolved({}, read_argv([f"-{flag}={wrong}"]))


# --- documented names and defaults --------------------------------------------------------------------------

# Field of AicCompilerConfig: keyword argument, class default, JSON key.
COMPILER_FIELDS = {
    "buffer_dealloc_delay": ("allocator_dealloc_delay", 2, "compiler_buffer_dealloc_delay"),
    "cluster_sizes": ("sdp_cluster_sizes", "1 2 0", "compiler_cluster_sizes"),
    "combine_inputs": ("combine_inputs", True, "compiler_combine_inputs"),
    "combine_outputs": ("combine_outputs", True, "compiler_combine_outputs"),
    "compilation_target": ("aic_hw", "hardware", "compiler_compilation_target"),
    "compile_threads": ("compile_threads", 2, "compiler_compileThreads"),
    "convert_to_fp16": ("convert_to_fp16", True, "compiler_convert_to_FP16"),
    "crc_stride": ("io_crc_stride", 256, "compiler_crc_stride"),
    "direct_api": ("direct_api", True, "compiler_directApi"),
    "do_ddr_to_multicast": ("multicast_weights", True, "compiler_do_DDR_to_multicast"),
    "do_host_preproc": ("host_preproc", True, "compiler_do_host_preproc"),
    "enable_debug": ("enable_debug", True, "compiler_enableDebug"),
    "enable_depth_first": ("aic_enable_depth_first", True, "compiler_enable_depth_first"),
    "exclude_mxfp6_matmul": ("exclude_mxfp6_matmul", "", "compiler_exclude_mxfp6_matmul"),
    "force_vtcm_spill": ("force_vtcm_spill", True, "compiler_force_VTCM_spill"),
    "gen_crc": ("io_crc", True, "compiler_genCRC"),
    "graph_names": ("graph_names", (), "graph_names"),
    "hardware_version": ("aic_hw_version", "2.0", "compiler_hardware_version"),
    "max_out_channel_split": ("mos", "1 2 0", "compiler_max_out_channel_split"),
    "mdp_dump_partition_config": (
        "mdp_dump_partition_config",
        "mdp_pipeline_template.json",
        "compiler_mdp_dump_partition_config",
    ),
    "mdp_load_partition_config": (
        "mdp_load_partition_config",
        "mdp_config.json",
        "compiler_mdp_load_partition_config",
    ),
    "mxfp6_matmul_weights": ("mxfp6_matmul", False, "compiler_mxfp6_matmul_weights"),
    "mxint8_mdp_io": ("allow_mxint8_mdp_io", False, "compiler_mxint8_mdp_io"),
    "num_of_cores": ("aic_num_cores", 1, "compiler_num_of_cores"),
    "overlap_split_factor": ("ols", 2, "compiler_overlap_split_factor"),
    "perf_warnings": ("aic_perf_warnings", True, "compiler_perfWarnings"),
    "pmu_events": ("aic_pmu_events", "1 2 0", "compiler_PMU_events"),
    "pmu_recipe_opt": ("aic_pmu_recipe", "KernelUtil", "compiler_PMU_recipe_opt"),
    "print_ddr_stats": ("ddr_stats", True, "compiler_printDDRStats"),
    "print_perf_metrics": ("aic_perf_metrics", True, "compiler_printPerfMetrics"),
    "retained_state": ("retained_state", False, "compiler_retained_state"),
    "size_split_granularity": ("size_split_granularity", 1024, "compiler_size_split_granularity"),
    "stat_level": ("stats_level", 10, "compiler_stat_level"),
    "stats_batch_size": ("stats_batchsize", 2, "compiler_stats_batch_size"),
    "time_passes": ("time_passes", True, "compiler_time_passes"),
    "user_dma_producer_dma_enabled": ("use_producer_dma", True, "compiler_userDMAProducerDMAEnabled"),
    "vtcm_working_set_limit_ratio": (
        "vtcm_working_set_limit_ratio",
        1.0,
        "compiler_VTCM_working_set_limit_ratio",
    ),
}

RUNTIME_FIELDS = {
    "device_ids": ("dev_id", (), "runtime_device_ids"),
    "num_activations": ("num_activations", 1, "runtime_num_activations"),
    "submit_num_retries": ("submit_num_retries", 5, "runtime_submit_num_retries"),
    "submit_timeout": ("submit_timeout", 0, "runtime_submit_timeout"),
    "threads_per_queue": ("threads_per_queue", 4, "runtime_threads_per_queue"),
}

# Every documented flag with its option.
FLAGS = """
m model_path | model model_path | strict-options strict_options | aic-binary-dir output_dir
output-node-name output_node_names | model-input model_inputs | onnx-define-symbol onnx_define_symbol
dynamic-shape-input dynamic_shape_input | always-expand-onnx-functions always_expand_onnx_functions
batchsize batchsize | network-specialization-config network_specialization_config
json-input-file json_input_file | custom-IO-list-file custom_io_list_file
dump-custom-IO-config-template dump_custom_io_config_template_file | retained-state retained_state
split-retained-state-io split_retained_state_io | split-model-io split_model_io
sub-functions sub_functions | register-custom-op register_custom_op
registered-custom-op register_custom_op | load-embedding-tables load_embedding_tables
dump-embedding-tables dump_embedding_tables | host-preproc host_preproc | aic-preproc aic_preproc
compile-only compile_only | aic-hw aic_hw | aic-hw-version aic_hw_version
operators-supported operators_supported | qpc-crc qpc_crc | io-encrypt io_encrypt
convert-to-fp16 convert_to_fp16 | execute-nodes-in-fp16 execute_nodes_in_fp16
node-precision-info node_precision_info_file
keep-original-precision-for-nodes keep_original_precision_for_nodes | mxfp6-matmul mxfp6_matmul
allow-mxint8-mdp-io allow_mxint8_mdp_io | external-quantization external_quantization_file
quantization-schema-activations quantization_schema_activations
quantization-schema-constants quantization_schema_constants | quantization-schema quantization_schema
quantization-calibration quantization_calibration
percentile-calibration-value percentile_calibration_value | num-histogram-bins num_histogram_bins
quantization-precision quantization_precision | quantization-precision-bias quantization_precision_bias
enable-rowwise enable_rowwise | enable-channelwise enable_channelwise | dump-profile dump_profile
load-profile load_profile | convert-to-quantize convert_to_quantize | profiling-threads profiling_threads
input-list-file input_list_file | use-random-input-data use_random_input_data
aic-num-cores aic_num_cores | mos mos | ols ols | mdts-mos mdts_mos
allocator-dealloc-delay allocator_dealloc_delay | size-split-granularity size_split_granularity
vtcm-working-set-limit-ratio vtcm_working_set_limit_ratio
aic-enable-depth-first aic_enable_depth_first | aic-depth-first-mem aic_depth_first_mem
sdp-cluster-sizes sdp_cluster_sizes | multicast-weights multicast_weights
use-producer-dma use_producer_dma | combine-inputs combine_inputs | combine-outputs combine_outputs
compile-threads compile_threads | user-tiled user_tiled
mdp-load-partition-config mdp_load_partition_config
mdp-dump-partition-config mdp_dump_partition_config | aic-num-of-instances aic_num_of_instances
stats-level stats_level | stats-batchsize stats_batchsize | ddr-stats ddr_stats
aic-pmu-recipe aic_pmu_recipe | aic-pmu-events aic_pmu_events | aic-perf-warnings aic_perf_warnings
aic-perf-metrics aic_perf_metrics | time-passes time_passes | enable-debug enable_debug | io-crc io_crc
io-crc-stride io_crc_stride | v verbose | h help | help help | usage help | u help
aic-profiling-type aic_profiling_type | aic-profiling-format aic_profiling_type
aic-profiling-out-dir aic_profiling_out_dir
aic-profiling-num-samples aic_profiling_num_samples | aic-profiling-start-iter aic_profiling_start_iter
aic-profiling-start-delay aic_profiling_start_delay | device-id dev_id | num-iter num_iter | time time
write-output-dir write_output_dir | write-output-start-iter write_output_start_iter
write-output-num-samples write_output_num_samples | target target
allow-unknown-options allow_unknown_options | strict-aic strict_aic
aic-operator-list aic_operator_list | clip-fp16-constants clip_fp16_constants
allow-profile-mismatch allow_profile_mismatch
"""

HARDWARE_ONLY = """
sub_functions split_model_io aic_hw mos ols ols_config mdts_mos allocator_dealloc_delay size_split_granularity
vtcm_working_set_limit_ratio force_vtcm_spill aic_enable_depth_first aic_depth_first_mem sdp_cluster_sizes
multicast_weights use_producer_dma direct_api user_tiled ddr_stats aic_pmu_recipe aic_pmu_events process_lock
"""


@pytest.mark.parametrize(("field", "row"), [*COMPILER_FIELDS.items(), *RUNTIME_FIELDS.items()])
def test_documented_field_has_its_default_and_key(field, row):
    name, default, key = row
    aic = BY_NAME[name].aic
    assert (aic.name, aic.default, aic.json_key) == (field, default, key)
    assert type(aic.default) is type(default)
    assert find(field) is find(key) is BY_NAME[name]
    kinds = {bool: JsonForm.BOOL, int: JsonForm.INT, float: JsonForm.FLOAT}
    assert aic.form is kinds.get(type(default), aic.form)


def test_there_are_42_fields():
    compiler = {spec.aic.name for spec in SPECS if spec.aic and spec.stage is Stage.COMPILE}
    runtime = {spec.aic.name for spec in SPECS if spec.aic and spec.stage is Stage.RUNTIME}
    assert compiler == COMPILER_FIELDS.keys()
    assert runtime == RUNTIME_FIELDS.keys()
    assert (len(compiler), len(runtime)) == (37, 5)


#: Names of flags in other runtimes.
OF_OTHERS = {"shape", "shapes"}


def test_every_documented_flag_is_that_of_its_option():
    documented = {
        pair.split()[0]: pair.split()[1] for line in FLAGS.split("\n") for pair in line.split("|") if pair
    }
    for text, name in documented.items():
        assert text in BY_NAME[name].flag.texts
        assert (
            read_argv([f"-{text}=1"] if BY_NAME[name].flag.form is not FlagForm.ACTION else [f"-{text}"])[
                0
            ].name
            == name
        )
    ours = {text for spec in SPECS if spec.flag and (spec.ours or spec.flag.ours) for text in spec.flag.texts}
    inferred = {BY_NAME[name].flag.text for name in INFERRED_FLAGS}
    assert {
        text for spec in SPECS if spec.flag for text in spec.flag.texts
    } <= documented.keys() | ours | inferred | OF_OTHERS


def test_options_of_the_hardware_alone_are_marked():
    assert {spec.name for spec in SPECS if spec.effect is Effect.RECORDED} == set(HARDWARE_ONLY.split())


def test_ours_are_marked():
    assert {spec.name for spec in SPECS if spec.ours} == {
        "target",
        "strict_options",
        "allow_unknown_options",
        "strict_aic",
        "aic_operator_list",
        "clip_fp16_constants",
        "allow_profile_mismatch",
        "allow_hw_mismatch",
        "calibration_data",
        "extra_output_tensors",
        "all_intermediate_outputs",
        "whole_caches",
        "output_shapes",
        "stored_weights",
    }
    assert [spec.name for spec in SPECS if spec.flag and spec.flag.ours] == ["mxint8_kv_cache"]


def test_texts_of_a_flag():
    assert Flag("help", FlagForm.ACTION, others=("h",)).texts == ("help", "h")


@pytest.mark.parametrize(
    ("key", "held", "name", "value"),
    [
        ("compiler_cluster_sizes", "1", "sdp_cluster_sizes", (1,)),
        ("compiler_max_out_channel_split", " 1 ", "mos", (1,)),
        ("compiler_PMU_events", "3F 70 200", "aic_pmu_events", (0x3F, 0x70, 0x200)),
        ("compiler_exclude_mxfp6_matmul", "a b", "exclude_mxfp6_matmul", ("a", "b")),
        ("compiler_compilation_target", "hardware", "aic_hw", True),
        ("compiler_do_host_preproc", False, "host_preproc", False),
        ("compiler_depth_first_mem", 16, "aic_depth_first_mem", 16),
        ("compiler_compilationOutputDir", "out", "output_dir", Path("out")),
        ("compiler_VTCM_working_set_limit_ratio", 1.0, "vtcm_working_set_limit_ratio", 1.0),
        ("graph_names", ["a"], "graph_names", ("a",)),
        ("runtime_device_ids", [0, 1], "dev_id", (0, 1)),
        ("runtime_device_id", 1, "dev_id", 1),
        ("runtime_process_lock", "x", "process_lock", "x"),
    ],
)
def test_values_of_the_extension_dictionary_are_read(key, held, name, value):
    assert attribute(resolved({key: held}), BY_NAME[name]) == value
