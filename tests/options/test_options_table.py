"""The table itself: names, lookup, and everything that is derived from it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import qaic.options
from generators import option_keywords, options_schema
from generators.options_page import documented, render
from qaic.options import CompileOptions, RunStepOptions, RuntimeOptions, SessionOptions
from qaic.options.argv import render_help, with_flags
from qaic.options.codecs.scalars import Int
from qaic.options.conflicts import broken
from qaic.options.keywords import CompileKeywords
from qaic.options.names import normalize
from qaic.options.rules import RuleView, Severity
from qaic.options.spec import Effect, Flag, FlagForm, OptionSpec, Stage
from qaic.options.table import SPECS, find, index, nearest_name, specs_of

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"

# Every documented keyword argument of Session.
SESSION_KEYWORDS = [
    "model_path",
    "options_path",
    "backend",
    "compile",
    "output_dir",
    "output_node_names",
    "model_inputs",
    "onnx_define_symbol",
    "dynamic_shape_input",
    "always_expand_onnx_functions",
    "custom_io_list_file",
    "dump_custom_io_config_template_file",
    "load_embedding_tables",
    "dump_embedding_tables",
    "host_preproc",
    "aic_preproc",
    "convert_to_fp16",
    "execute_nodes_in_fp16",
    "node_precision_info_file",
    "keep_original_precision_for_nodes",
    "external_quantization_file",
    "quantization_schema_activations",
    "quantization_schema_constants",
    "quantization_calibration",
    "percentile_calibration_value",
    "num_histogram_bins",
    "quantization_precision",
    "quantization_precision_bias",
    "enable_rowwise",
    "enable_channelwise",
    "dump_profile",
    "load_profile",
    "convert_to_quantize",
    "profiling_threads",
    "aic_num_cores",
    "mos",
    "ols",
    "allocator_dealloc_delay",
    "size_split_granularity",
    "vtcm_working_set_limit_ratio",
    "aic_enable_depth_first",
    "aic_depth_first_mem",
    "sdp_cluster_sizes",
    "multicast_weights",
    "use_producer_dma",
    "combine_inputs",
    "combine_outputs",
    "compile_threads",
    "mdp_load_partition_config",
    "mdp_dump_partition_config",
    "stats_batchsize",
    "ddr_stats",
    "aic_pmu_recipe",
    "aic_pmu_events",
    "aic_perf_warnings",
    "aic_perf_metrics",
    "time_passes",
    "enable_debug",
    "io_crc",
    "io_crc_stride",
    "dev_id",
    "num_activations",
    "set_size",
    "enable_metrics",
    "enable_profiling",
]

# Compiler and command line options that option files contain.
FURTHER_NAMES = [
    "batchsize",
    "network_specialization_config",
    "json_input_file",
    "retained_state",
    "split_retained_state_io",
    "split_model_io",
    "sub_functions",
    "register_custom_op",
    "compile_only",
    "aic_hw",
    "aic_hw_version",
    "qpc_crc",
    "io_encrypt",
    "mxfp6_matmul",
    "exclude_mxfp6_matmul",
    "allow_mxint8_mdp_io",
    "mxint8_kv_cache",
    "quantization_schema",
    "input_list_file",
    "use_random_input_data",
    "mdts_mos",
    "ols_config",
    "user_tiled",
    "stats_level",
    "verbose",
    "oversubscription_name",
    "submit_timeout",
    "submit_num_retries",
    "threads_per_queue",
    "target",
    "strict_options",
    "allow_unknown_options",
    "strict_aic",
    "aic_operator_list",
    "clip_fp16_constants",
    "allow_profile_mismatch",
    "allow_hw_mismatch",
    "calibration_data",
]

# Fields of AicCompilerConfig and AicRuntimeConfig whose names differ from the keyword argument.
CONFIG_FIELDS = {
    "num_of_cores": "aic_num_cores",
    "compilation_target": "aic_hw",
    "hardware_version": "aic_hw_version",
    "do_host_preproc": "host_preproc",
    "mxfp6_matmul_weights": "mxfp6_matmul",
    "mxint8_mdp_io": "allow_mxint8_mdp_io",
    "max_out_channel_split": "mos",
    "overlap_split_factor": "ols",
    "buffer_dealloc_delay": "allocator_dealloc_delay",
    "enable_depth_first": "aic_enable_depth_first",
    "cluster_sizes": "sdp_cluster_sizes",
    "do_ddr_to_multicast": "multicast_weights",
    "user_dma_producer_dma_enabled": "use_producer_dma",
    "stat_level": "stats_level",
    "stats_batch_size": "stats_batchsize",
    "print_ddr_stats": "ddr_stats",
    "pmu_recipe_opt": "aic_pmu_recipe",
    "pmu_events": "aic_pmu_events",
    "perf_warnings": "aic_perf_warnings",
    "print_perf_metrics": "aic_perf_metrics",
    "gen_crc": "io_crc",
    "crc_stride": "io_crc_stride",
    "device_ids": "dev_id",
}

QUIRKS = {
    "allocator_dealloac_delay": "allocator_dealloc_delay",
    "model_inputs list": "model_inputs",
    "model_input": "model_inputs",
    "-model-input": "model_inputs",
    "-aic-binary-dir": "output_dir",
    "--custom-IO-list-file": "custom_io_list_file",
    "custom-io-list": "custom_io_list_file",
    "external-quantization": "external_quantization_file",
    "node-precision-info": "node_precision_info_file",
    "-output-node-name": "output_node_names",
    "-device-id": "dev_id",
    "runtime_device_id": "dev_id",
    "num_activation": "num_activations",
    "aic-num-of-activations": "num_activations",
    "submit_retry_count": "submit_num_retries",
    "mxfp6": "mxfp6_matmul",
    "hwVersion": "aic_hw_version",
    "compiler_convert_to_FP16": "convert_to_fp16",
    "compiler_compilationOutputDir": "output_dir",
    "compiler_VTCM_working_set_limit_ratio": "vtcm_working_set_limit_ratio",
    "compiler_userDMAProducerDMAEnabled": "use_producer_dma",
}


@pytest.mark.parametrize("name", [*SESSION_KEYWORDS, *FURTHER_NAMES])
def test_every_documented_name_is_known_under_itself(name):
    found = find(name)
    assert found is not None
    assert found.name == name


def test_options_of_the_documents_of_session_are_marked():
    assert len(SESSION_KEYWORDS) == 65  # 61 in the list of Session, and four that select the action
    assert {spec.name for spec in SPECS if documented(spec) == "Session"} == set(SESSION_KEYWORDS)


@pytest.mark.parametrize(("spelling", "name"), [*CONFIG_FIELDS.items(), *QUIRKS.items()])
def test_other_documented_spellings_lead_to_the_canonical_name(spelling, name):
    found = find(spelling)
    assert found is not None
    assert found.name == name


def test_names_of_one_option_are_never_those_of_another():
    assert len({row.name for row in SPECS}) == len(SPECS)
    assert all(normalize(key) == key for row in SPECS for key in row.keys)


def test_one_letter_flags_are_not_names():
    assert find("m") is None
    assert find("-m") is None


def row(name: str, *aliases: str) -> OptionSpec:
    return OptionSpec(
        name=name,
        stage=Stage.COMPILE,
        codec=Int(),
        default=0,
        summary="A row.",
        section="",
        effect=Effect.BEHAVIOR,
        aliases=aliases,
        flag=Flag(name, FlagForm.VALUE),
    )


def test_index_rejects_two_options_with_one_key():
    with pytest.raises(ValueError, match="'beta' means two options: alpha and beta"):
        index([row("alpha", "beta"), row("beta")])


def test_index_rejects_a_key_that_lookup_would_never_reach():
    with pytest.raises(ValueError, match="'Gen-CRC' of the option alpha is not in its normal form"):
        index([row("alpha", "Gen-CRC")])


@pytest.mark.parametrize("model", [SessionOptions, CompileOptions, RuntimeOptions, RunStepOptions])
def test_defaults_of_a_model_are_those_of_its_rows_and_valid(model):
    built = model()
    for spec in specs_of(model):
        value = getattr(built, spec.name)
        assert value == spec.default
        if value is not None:
            assert spec.codec.parse(value) == value


@pytest.mark.parametrize("model", [SessionOptions, CompileOptions, RuntimeOptions, RunStepOptions])
def test_models_are_frozen(model):
    built = model()
    for spec in specs_of(model):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(built, spec.name, spec.default)


def test_default_mappings_are_not_shared():
    assert CompileOptions().onnx_define_symbol is not CompileOptions().onnx_define_symbol


def test_documented_defaults():
    compile_, runtime = CompileOptions(), RuntimeOptions()
    assert (compile_.aic_num_cores, compile_.combine_inputs, compile_.combine_outputs) == (1, True, True)
    assert (compile_.convert_to_fp16, compile_.clip_fp16_constants, compile_.output_dir) == (
        False,
        True,
        None,
    )
    assert runtime.backend_options() == {
        "dev_id": 0,
        "num_activations": 1,
        "set_size": 10,
        "submit_timeout": 0,
        "submit_num_retries": 5,
        "threads_per_queue": 4,
        "oversubscription_name": None,
    }


def test_only_compile_options_reach_the_container_and_only_runtime_options_change():
    # Options for the paths of output, the number of threads and the printed text, and options without a JSON
    # form.
    assert {spec.name for spec in SPECS if spec.stage is Stage.COMPILE and not spec.in_container} == {
        "output_dir",
        "dump_custom_io_config_template_file",
        "dump_embedding_tables",
        "compile_only",
        "allow_unknown_options",
        "dump_profile",
        "profiling_threads",
        "calibration_data",
        "compile_threads",
        "mdp_dump_partition_config",
        "aic_perf_warnings",
        "aic_perf_metrics",
        "time_passes",
        "enable_debug",
        "verbose",
    }
    assert all(spec.stage is Stage.COMPILE for spec in SPECS if spec.in_container)
    assert all(spec.stage is Stage.RUNTIME for spec in SPECS if spec.updatable)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("aic_num_core", "aic_num_cores"),
        ("convert-to-fp-16", "convert_to_fp16"),
        ("num_activatons", "num_activations"),
        ("setsize", "set_size"),
        ("onnx_define_symbols", "onnx_define_symbol"),
        ("enable_profilng", "enable_profiling"),
        ("allocator_deallocation_delay", "allocator_dealloc_delay"),
        ("percentile_calibration", "percentile_calibration_value"),
        ("zzzz", None),
        ("", None),
        ("x" * 100_000, None),
    ],
)
def test_nearest_name(wrong, right):
    assert nearest_name(wrong) == right


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (REFERENCE / "options.md", render),
        (REFERENCE / "options.schema.json", options_schema.render),
        (REFERENCE / "flags.txt", lambda: render_help(tuple(Stage))),
        (Path(qaic.options.__file__).with_name("keywords.py"), option_keywords.render),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_file_is_the_generated_one(path, text):
    assert path.read_text(encoding="utf-8") == text(), "write it again: make docs"


def test_help_names_options_by_their_flags():
    text = render_help(tuple(Stage))
    assert with_flags(text, "-") == text


def test_help_shows_the_flags_of_the_stages_asked_for():
    text = render_help({Stage.COMPILE})
    for shown in (
        "Model, interface, container:\n  -aic-binary-dir=DIR\n        Directory",
        "  -onnx-define-symbol=SYMBOL,N ...\n",
        "  -combine-inputs[=true|false]\n",
        "  -stats-level=N\n        Device statistics",
        "  -size-split-granularity=N\n        Largest tile of a split operation. [512 to 2048; no effect",
        "  -v, -vv, -vvv\n",
    ):
        assert shown in text
    assert "-num-iter" not in text
    assert "`" not in text
    assert max(map(len, text.splitlines())) <= 110


def test_schema_knows_every_spelling_of_a_key():
    known = json.loads(options_schema.render())
    for key in ("aic_num_cores", "aic-num-cores", "num_of_cores", "custom-IO-list-file", "compiler_genCRC"):
        assert key in known["properties"]
    for entry in known["properties"].values():
        assert "description" in entry or entry["$ref"].removeprefix("#/$defs/") in known["$defs"]
    cores = known["$defs"]["aic_num_cores"]["anyOf"][0]
    assert (cores["minimum"], cores["maximum"]) == (1, 16)
    assert "calibration_data" not in known["$defs"]


def test_keywords_are_those_of_the_table():
    keywords = typing.cast("typing.Any", CompileKeywords).__annotations__
    expected = {spec.name for spec in SPECS if spec.keyword and spec.stage is not Stage.CLI}
    assert set(keywords) == expected - {"model_path"} | {"allocator_dealloac_delay"}
    assert not CompileKeywords.__required_keys__


def test_reference_page_names_every_option():
    page = render()
    for found in SPECS:
        assert f"`{found.name}`" in page


def modules_after(statement: str) -> set[str]:
    """Return the modules that a statement imports in a new interpreter, without those of the exceptions."""
    script = (
        "import json, sys, qaic.errors; base = set(sys.modules);"
        f"{statement}; print(json.dumps(sorted(set(sys.modules) - base)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_resolving_keywords_loads_no_heavy_module():
    loaded = modules_after(
        "from qaic.options import resolve;resolve({'dev_id': 1}, options_path=None, model_is_container=False)"
    )
    assert "qaic.options.table" in loaded
    heavy = {"numpy", "onnx", "onnxruntime", "pydantic", "yaml"}
    assert {name.partition(".")[0] for name in loaded}.isdisjoint(heavy)


def test_importing_options_does_not_build_the_table():
    loaded = modules_after("import qaic.options")
    assert {name for name in loaded if name.startswith("qaic.options")} == {"qaic.options"}


def test_public_names_are_those_listed():
    for name in qaic.options.__all__:
        assert getattr(qaic.options, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'resolved'"):
        qaic.options.resolved  # noqa: B018


def test_placeholders_name_their_values():
    """`VALUE` does not help a reader; text is a name."""
    assert "VALUE" not in render_help(tuple(Stage))
    assert "  -output-shape=OUTPUT,[N,...] ...\n" in render_help(tuple(Stage))


@pytest.mark.parametrize("model_is_container", [False, True])
def test_defaults_violate_no_rule(model_is_container):
    """The rules are not checked if no option is given."""
    defaults = {spec.name: spec.default for spec in SPECS}
    view = RuleView(defaults, defaults, {}, model_is_container=model_is_container)
    assert [broken(view, severity) for severity in Severity] == [[], []]
