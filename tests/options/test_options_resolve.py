"""Resolution: precedence, spelling in errors, unknown and unsupported names, containers, rules, updates."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from qaic.errors import OptionConflictError, OptionError, UnknownOptionError
from qaic.options import CompileOptions, ModelInput, RuntimeOptions, SessionOptions, resolve
from qaic.options.raw_option import OptionSource
from qaic.options.resolution import parse_updates
from qaic.options.table import effective_options, recorded_only


@pytest.fixture
def options_file(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "vit.yaml"
        path.write_text(text)
        return path

    return write


def resolved(kwargs=None, *, options_path=None, container=False):
    return resolve(kwargs or {}, options_path=options_path, model_is_container=container)


def test_nothing_given_gives_defaults_and_no_warning(caplog):
    result = resolved()
    assert (result.session, result.compile, result.runtime) == (
        SessionOptions(),
        CompileOptions(),
        RuntimeOptions(),
    )
    assert result.set_compile == {}
    assert result.origins == {}
    assert result.warnings == ()
    assert caplog.records == []


def test_documented_example_is_the_same_as_keywords(options_file):
    path = options_file("aic_num_cores: 4\nconvert-to-fp16: true\nonnx_define_symbol: {batch: 2, seq: 128}\n")
    from_file = resolved(options_path=path)
    from_keywords = resolved(
        {"aic_num_cores": 4, "convert_to_fp16": True, "onnx_define_symbol": [("batch", 2), ("seq", 128)]}
    )
    assert from_file.compile == from_keywords.compile
    assert from_file.set_compile == from_keywords.set_compile
    assert from_file.set_compile == {
        "aic_num_cores": 4,
        "convert_to_fp16": True,
        "onnx_define_symbol": {"batch": 2, "seq": 128},
    }


def test_keyword_wins_over_file_over_default(options_file):
    path = options_file("set_size: 4\nnum-activations: 3\n")
    result = resolved({"set_size": 7}, options_path=path)
    assert (result.runtime.set_size, result.runtime.num_activations, result.runtime.dev_id) == (7, 3, 0)
    assert result.origins["set_size"].source is OptionSource.KEYWORD
    assert (result.origins["num_activations"].source, result.origins["num_activations"].line) == (
        OptionSource.YAML,
        2,
    )
    assert "dev_id" not in result.origins


def test_keyword_none_is_not_given(options_file):
    path = options_file("set_size: 4\ndev_id:\nnum_activations: ~\n")
    result = resolved({"set_size": None, "unknown": None}, options_path=path)
    assert result.runtime == RuntimeOptions(set_size=4)


def test_options_path_is_kept_and_may_have_any_spelling(options_file):
    path = options_file("set_size: 4\n")
    assert resolved(options_path=str(path)).session.options_path == path
    assert resolved({"Options-Path": path}).runtime.set_size == 4
    with pytest.raises(OptionConflictError, match="Options-Path and options_path are the same option"):
        resolved({"Options-Path": "other.yaml"}, options_path=path)


def test_options_path_rejects_wrong_value_and_missing_file(tmp_path):
    with pytest.raises(OptionError, match="options_path: expected the path of a YAML file, found ''"):
        resolved(options_path="")
    with pytest.raises(FileNotFoundError):
        resolved(options_path=tmp_path / "none.yaml")


def test_file_cannot_name_another_file(options_file):
    path = options_file("set_size: 2\noptions-path: other.yaml\n")
    with pytest.raises(
        OptionError, match=r"options-path \(.*vit.yaml, line 2\): an options file cannot"
    ) as caught:
        resolved(options_path=path)
    assert caught.value.code == "option.nested_file"
    assert resolved(options_path=options_file("options-path:\n")).warnings == ()


def test_model_path_of_a_file_gives_way_to_the_argument(options_file):
    path = options_file("model-path: a.onnx\n")
    assert resolved(options_path=path).session.model_path == Path("a.onnx")
    assert resolved({"model_path": "b.onnx"}, options_path=path).session.model_path == Path("b.onnx")


def test_set_compile_is_what_was_given_even_when_it_equals_the_default(tmp_path):
    result = resolved(
        {
            "combine_inputs": True,
            "output_dir": tmp_path,
            "compile_only": True,
            "num_activations": 2,
            "model_input": "x,float,[1]",
        }
    )
    assert result.set_compile == {
        "combine_inputs": True,
        "model_inputs": [{"input_name": "x", "input_type": "float32", "input_shape": [1]}],
    }
    assert result.compile.model_inputs == (ModelInput("x", "float32", (1,)),)


def test_set_compile_does_not_depend_on_the_order_given():
    one = resolved({"aic_num_cores": 2, "convert_to_fp16": True}).set_compile
    other = resolved({"convert-to-fp16": "on", "num_of_cores": "2"}).set_compile
    assert json.dumps(one) == json.dumps(other)


def test_effective_options_hold_defaults_too():
    effective = effective_options(resolved({"aic_num_cores": 2}).compile)
    assert effective["aic_num_cores"] == 2
    assert effective["combine_inputs"] is True
    assert effective["model_inputs"] == []
    assert "output_dir" not in effective
    json.dumps(effective)


# --- wrong values ---


def test_wrong_value_names_the_keyword_as_written():
    with pytest.raises(OptionError) as caught:
        resolved({"Num-Of-Cores": 17})
    assert str(caught.value) == "Num-Of-Cores: expected an integer from 1 to 16, found 17"
    assert caught.value.code == "option.invalid_value"
    assert caught.value.context == {
        "options": ["aic_num_cores"],
        "expected": ["an integer from 1 to 16"],
        "found": ["17"],
    }


def test_wrong_value_names_file_line_and_key_as_written(options_file):
    path = options_file("set_size: 4\naic-num-cores: four\n")
    with pytest.raises(OptionError) as caught:
        resolved(options_path=path)
    assert (
        str(caught.value) == f"aic-num-cores ({path}, line 2): expected an integer from 1 to 16, found 'four'"
    )


def test_all_wrong_values_are_in_one_error(options_file):
    path = options_file("set_size: 0\n")
    with pytest.raises(OptionError) as caught:
        resolved({"convert_to_fp16": "maybe", "dev_id": -1}, options_path=path)
    assert str(caught.value).splitlines() == [
        "3 options have wrong values:",
        "  convert_to_fp16: expected true or false, found 'maybe'",
        '  dev_id: expected an integer from 0 to 2147483647, or several as [0, 1] or "0:1", found -1',
        f"  set_size ({path}, line 1): expected an integer from 1 to 2147483647, found '0'",
    ]


def test_backend_rejects_other_names():
    assert resolved({"backend": "QAIC"}).session.backend == "qaic"
    with pytest.raises(ValueError, match="backend: expected one of aic, qaic, found 'cuda'"):
        resolved({"backend": "cuda"})


def test_a_misspelled_word_is_answered_with_the_nearest():
    with pytest.raises(OptionError) as near:
        resolved({"quantization_schema": "symetric"})
    assert near.value.message.endswith("found 'symetric' (did you mean symmetric?)")
    with pytest.raises(OptionError) as far:
        resolved({"quantization_calibration": "entropy"})
    assert far.value.message.endswith("found 'entropy'")


# --- given twice ---


def test_two_spellings_of_a_keyword_are_accepted_while_they_agree():
    assert resolved({"num_activations": 2, "num_activation": "2"}).runtime.num_activations == 2
    with pytest.raises(
        OptionConflictError, match="num_activations and num_activation are the same option"
    ) as caught:
        resolved({"num_activations": 2, "num_activation": 3})
    assert caught.value.code == "option.duplicate"
    assert caught.value.context == {"options": ["num_activations"]}


def test_two_names_of_one_option_in_a_file_are_rejected(options_file):
    path = options_file("num_activations: 2\nnum-activation: 2\n")
    with pytest.raises(
        OptionConflictError, match=r"num_activations \(.*line 1\) and num-activation \(.*line 2\)"
    ):
        resolved(options_path=path)


def test_the_same_option_in_file_and_keywords_is_precedence_not_conflict(options_file):
    path = options_file("num_activations: 2\n")
    assert resolved({"num_activation": 3}, options_path=path).runtime.num_activations == 3


# --- unknown and unsupported names ---


def test_unknown_keyword_is_a_type_error_with_the_nearest_name():
    with pytest.raises(TypeError) as caught:
        resolved({"aic_num_core": 4})
    assert isinstance(caught.value, UnknownOptionError)
    assert str(caught.value) == "unknown option aic_num_core; did you mean aic_num_cores?"
    assert caught.value.code == "option.unknown"
    assert caught.value.context == {"options": ["aic_num_core"], "nearest": ["aic_num_cores"]}


def test_suggestion_has_the_style_of_the_mistake():
    with pytest.raises(UnknownOptionError, match=r"did you mean -aic-num-cores\?"):
        resolved({"-aic-num-core": 4})
    with pytest.raises(UnknownOptionError, match=r"did you mean set-size\?"):
        resolved({"sett-size": 4})


def test_unknown_keyword_without_a_near_name_has_no_suggestion():
    with pytest.raises(UnknownOptionError) as caught:
        resolved({"zzzz": 4})
    assert str(caught.value) == "unknown option zzzz"


def test_option_of_the_tools_as_a_keyword_says_so():
    with pytest.raises(UnknownOptionError) as caught:
        resolved({"num_iter": 4})
    assert str(caught.value) == "num_iter is an option of the command line tools only"
    assert caught.value.code == "option.only_for_tools"


def test_input_file_of_the_tools_is_ignored_with_a_warning():
    result = resolved({"json_input_file": "inputs.json"})
    assert result.warnings == ("options that only the command line tools use are ignored: json_input_file",)
    assert result.run_step.json_input_file is None


def test_several_unusable_keywords_are_in_one_error():
    with pytest.raises(UnknownOptionError) as caught:
        resolved({"num_iter": 4, "set_sise": 3, "dev_id": "x"})
    assert str(caught.value).splitlines() == [
        "2 options cannot be used:",
        "  unknown option set_sise; did you mean set_size?",
        "  num_iter is an option of the command line tools only",
    ]
    assert caught.value.code == "option.unknown"


def test_public_option_file_loads_without_a_warning(options_file, caplog):
    # Keys of the kind and combination that public samples pass to a session.
    path = options_file(
        "aic_num_cores: 4\nnum_activations: 1\nconvert_to_fp16: true\nmulticast-weights: true\n"
        "stats-batchsize: 1\nols: 1\nmos: 1\nonnx_define_symbol:\n  batch: 1\ncompile-only: true\naic-hw:\n"
    )
    with caplog.at_level(logging.WARNING, logger="qaic.options"):
        result = resolved(options_path=path)
    assert result.compile.aic_num_cores == 4
    assert result.compile.compile_only is True
    assert (result.compile.multicast_weights, result.compile.mos) == (True, (1,))
    assert result.warnings == ()
    assert caplog.records == []


def test_unknown_key_of_a_file_is_a_warning_each(options_file):
    path = options_file("aic-num-core: 4\nfrobnicate: 1\n")
    assert resolved(options_path=path).warnings == (
        f"ignored: unknown option aic-num-core ({path}, line 1); did you mean aic-num-cores?",
        f"ignored: unknown option frobnicate ({path}, line 2)",
    )


def test_lists_of_a_precision_file_name_its_option(options_file):
    """Regression: the warning about such a file named no option that reads it."""
    path = options_file("FP32NodeInstanceNames: [y]\n")
    (warning,) = resolved(options_path=path).warnings
    assert warning.endswith(f"line 1); did you mean node_precision_info_file={path}?")
    option = warning.rpartition("did you mean ")[2].removesuffix("?").split("=", 1)
    assert resolved(dict([option])).compile.node_precision_info_file.fp32 == ("y",)


@pytest.mark.parametrize("where", ["keyword", "file"])
def test_strict_options_makes_unusable_keys_errors(options_file, where):
    text = "aic-num-core: 4\nnum-iter: 1\n"
    keywords = {"strict_options": True} if where == "keyword" else {}
    path = options_file(text if keywords else text + "strict-options: yes\n")
    with pytest.raises(UnknownOptionError) as caught:
        resolved(keywords, options_path=path)
    assert str(caught.value).splitlines() == [
        "2 options cannot be used:",
        f"  unknown option aic-num-core ({path}, line 1); did you mean aic-num-cores?",
        f"  num-iter ({path}, line 2) is an option of the command line tools only",
    ]


def test_keyword_turns_strictness_of_the_file_off(options_file):
    path = options_file("strict_options: true\nnum-iter: 1\n")
    assert len(resolved({"strict_options": False}, options_path=path).warnings) == 1


# --- compiled containers ---


def test_container_ignores_compile_options_with_one_warning(options_file):
    path = options_file("convert-to-fp16: true\nmos: 2\nnum_activations: 2\n")
    result = resolved({"aic_num_cores": 99, "ols": 1, "set_size": 3}, options_path=path, container=True)
    assert result.compile == CompileOptions()
    assert result.set_compile == {}
    assert (result.runtime.num_activations, result.runtime.set_size) == (2, 3)
    assert result.warnings == (
        "the model is already compiled; compile options are ignored: "
        "aic_num_cores, ols, convert-to-fp16, mos",
    )


def test_container_does_not_excuse_typing_errors_or_runtime_options():
    with pytest.raises(UnknownOptionError, match="did you mean num_activations"):
        resolved({"num_activatons": 2}, container=True)
    with pytest.raises(UnknownOptionError, match="num_iter is an option of the command line"):
        resolved({"num_iter": 1}, container=True)


def test_container_with_session_options_alone_has_no_warning():
    assert resolved({"backend": "aic", "compile": False}, container=True).warnings == ()


# --- rules ---


def test_metrics_and_profiling_exclude_each_other(options_file):
    path = options_file("enable-metrics: true\n")
    with pytest.raises(OptionConflictError) as caught:
        resolved({"enable_profiling": True}, options_path=path)
    metrics = f"enable-metrics ({path}, line 1)"
    assert str(caught.value) == (
        f"{metrics} and enable_profiling exclude each other: "
        f"profiling also records the metrics, so omit {metrics}"
    )
    assert caught.value.code == "option.metrics_and_profiling"
    assert caught.value.context["options"] == ["enable_metrics", "enable_profiling"]
    assert resolved({"enable_metrics": False}, options_path=path).runtime.enable_metrics is False


def test_all_broken_rules_are_in_one_error():
    with pytest.raises(OptionConflictError) as caught:
        resolved({"enable_metrics": 1, "enable_profiling": 1, "compile": False})
    assert str(caught.value).startswith("2 rules between options are violated:\n  enable_metrics and")
    assert caught.value.code == "option.conflict"
    assert caught.value.context["rules"] == ["metrics_and_profiling", "container_needed"]


def test_compile_false_needs_a_container():
    assert resolved({"compile": False}, container=True).session.compile is False
    with pytest.raises(OptionConflictError, match="compile is false, but the model is not compiled"):
        resolved({"compile": "no"})


def test_clipping_without_fp16_is_a_warning():
    assert resolved({"clip_fp16_constants": True}).warnings == (
        "clip_fp16_constants has no effect without convert_to_fp16",
    )
    assert resolved({"clip_fp16_constants": True, "convert_to_fp16": True}).warnings == ()


# --- relative paths ---


def test_paths_are_relative_to_the_current_directory_or_to_the_file(options_file, tmp_path):
    path = options_file("output_dir: out\n")
    assert resolved(options_path=path).compile.output_dir == Path("out")
    path = options_file("output_dir: out\nrelative-path: true\n")
    assert resolved(options_path=path).compile.output_dir == tmp_path / "out"
    assert resolved({"output_dir": "here"}, options_path=path).compile.output_dir == Path("here")


# --- options that may change ---


def test_changes_are_typed_and_of_canonical_names():
    before = RuntimeOptions(enable_metrics=True)
    changes = parse_updates({"num_activation": "3", "set_size": 4, "submit_retry_count": 2, "dev_id": None})
    assert changes == {"num_activations": 3, "set_size": 4, "submit_num_retries": 2}
    after = replace(before, **changes)
    assert after == RuntimeOptions(enable_metrics=True, num_activations=3, set_size=4, submit_num_retries=2)
    assert parse_updates({}) == {}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"aic_num_cores": 2}, "aic_num_cores cannot be changed after construction"),
        ({"enable_metrics": True}, "enable_metrics cannot be changed after construction"),
        ({"mos": None}, "mos cannot be changed after construction"),
        ({"num_activatons": 2}, r"unknown option num_activatons; did you mean num_activations\?"),
    ],
)
def test_update_rejects_other_options_and_names_the_valid_ones(change, text):
    with pytest.raises(OptionError, match=text) as caught:
        parse_updates({"set_size": 2, **change})
    assert not isinstance(caught.value, TypeError)
    assert str(caught.value).endswith(
        "Options that can be changed: dev_id, num_activations, set_size, submit_timeout, submit_num_retries, "
        "threads_per_queue, oversubscription_name"
    )
    assert caught.value.code == "option.not_updatable"


def test_update_rejects_wrong_and_contradicting_values():
    with pytest.raises(OptionError, match="set_size: expected an integer from 1"):
        parse_updates({"set_size": 0})
    with pytest.raises(OptionConflictError, match="are the same option"):
        parse_updates({"num_activations": 1, "num_activation": 2})


# --- files of the ONNX Runtime provider and of the tools ---


def test_file_of_the_runtime_provider_is_read(options_file, tmp_path):
    for name in ("quant.yaml", "op.yaml"):
        (tmp_path / name).write_text("content")
    path = options_file(
        "aic-binary-dir: qpc\naic-num-cores: 4\nnum-iter: 3\nconvert-to-fp16: \"True\"\n"
        "onnx-define-symbol: batch 1 seq 128\nregister-custom-op: [op.yaml]\n"
        "external-quantization: quant.yaml\nhwVersion: 2.0\ndevice-id: 0\nset-size: 10\n"
        "aic-num-of-activations: 2\nrelative-path: True\n"
    )  # fmt: skip
    result = resolved(options_path=path)
    options = result.compile
    assert options.output_dir == tmp_path / "qpc"
    assert (options.convert_to_fp16, options.aic_hw_version, options.aic_num_cores) == (True, "2.0", 4)
    assert options.onnx_define_symbol == {"batch": 1, "seq": 128}
    assert [file.path for file in options.register_custom_op] == [tmp_path / "op.yaml"]
    assert options.external_quantization_file.path == tmp_path / "quant.yaml"
    assert (result.runtime.num_activations, result.runtime.set_size) == (2, 10)
    assert result.warnings == ("options that only the command line tools use are ignored: num-iter",)


def test_hexadecimal_events_and_versions_of_a_file_are_text(options_file):
    path = options_file("aic-pmu-events: 70\naic_hw_version: 2.0\nonnx_define_symbol: {on: 010}\n")
    options = resolved(options_path=path).compile
    assert options.aic_pmu_events == (0x70,)
    assert options.aic_hw_version == "2.0"
    assert options.onnx_define_symbol == {"on": 10}


def test_null_is_a_calibration_and_otherwise_not_given(options_file):
    path = options_file("quantization_calibration: None\nnum_histogram_bins: None\nmos: ~\n")
    result = resolved(options_path=path)
    assert result.set_compile == {"quantization_calibration": "None"}
    assert result.compile.num_histogram_bins == 512


def test_samples_exist_only_in_python(options_file):
    path = options_file("calibration_data: [{x: [1, 2]}]\nconvert_to_quantize: true\n")
    with pytest.raises(OptionError, match=r"calibration_data .*line 1.*only from Python"):
        resolved(options_path=path)


# --- files as values, recorded options ---


def test_a_file_counts_by_its_content(tmp_path):
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("content")
    second.write_text("content")
    recorded = [resolved({"load_profile": path}).set_compile for path in (first, str(second))]
    assert recorded[0] == recorded[1]
    assert list(recorded[0]) == ["load_profile"]
    second.write_text("other")
    assert resolved({"load_profile": second}).set_compile != recorded[0]


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path):
    with pytest.raises(OptionError, match=r"load_profile: expected a readable profile, .*No such file"):
        resolved({"load_profile": tmp_path / "missing"})
    with pytest.raises(OptionError, match="which is not a regular file"):
        resolved({"load_profile": tmp_path})


def test_empty_lists_are_not_recorded():
    assert resolved({"graph_names": [], "mos": -1, "onnx_define_symbol": {}}).set_compile == {}


def test_effective_options_are_the_usual_ones_and_those_that_differ():
    usual = {
        "aic_num_cores": 1,
        "clip_fp16_constants": True,
        "combine_inputs": True,
        "combine_outputs": True,
        "convert_to_fp16": False,
        "model_inputs": [],
        "onnx_define_symbol": {},
    }
    assert effective_options(resolved().compile) == usual
    given = {"stats_level": 40, "mos": "1", "aic_hw": True, "time_passes": True, "quantization_schema": None}
    assert effective_options(resolved(given).compile) == {**usual, "mos": [1], "aic_hw": True}


def test_options_without_an_effect_are_known():
    options = resolved(
        {"mos": 1, "aic_hw": True, "multicast_weights": False, "convert_to_fp16": True}
    ).compile
    assert [spec.name for spec in recorded_only(options)] == ["aic_hw", "mos"]
    assert recorded_only(CompileOptions()) == ()
