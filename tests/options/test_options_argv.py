"""Command lines: accepted forms, refusals, and that writing is the inverse of reading."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qaic.errors import OptionConflictError, OptionError, UnknownOptionError
from qaic.options import resolve
from qaic.options.argv import read_argv, to_argv, without_flag
from qaic.options.codecs.structures import ModelInput
from qaic.options.table import flags_meant


def resolved(*argv):
    return resolve({}, options_path=None, model_is_container=False, flags=read_argv(argv))


def test_command_of_exporters_is_read():
    result = resolved(
        "-aic-hw",
        "-aic-hw-version=2.0",
        "-m=model.onnx",
        "-retained-state=true",
        "-compile-only",
        "-stats-batchsize=1",
        "-aic-num-cores=16",
        "-use-producer-dma=1",
        "-combine-inputs=false",
        "-execute-nodes-in-fp16=Add,Div",
        "-sdp-cluster-sizes=8,8",
        "-mos=1,4",
        "-aic-pmu-events=3F,70",
        "-onnx-define-symbol=batch,2",
        "-onnx-define-symbol=seq,128",
        "-model-input=x,float,[1,3]",
        "-vv",
    )
    options = result.compile
    assert result.session.model_path == Path("model.onnx")
    assert (options.aic_hw, options.aic_hw_version, options.retained_state) == (True, "2.0", True)
    assert (options.compile_only, options.use_producer_dma, options.combine_inputs) == (True, True, False)
    assert (options.aic_num_cores, options.mos, options.sdp_cluster_sizes) == (16, (1, 4), (8, 8))
    assert options.execute_nodes_in_fp16 == ("Add", "Div")
    assert options.aic_pmu_events == (0x3F, 0x70)
    assert options.onnx_define_symbol == {"batch": 2, "seq": 128}
    assert options.model_inputs == (ModelInput("x", "float32", (1, 3)),)
    assert options.verbose == 2


@pytest.mark.parametrize(
    "argv",
    [
        ["-aic-num-cores=4"],
        ["--aic-num-cores=4"],
        ["-aic-num-cores", "4"],
        ["--aic-num-cores", "4"],
        ["-aic_num_cores=4"],
        ["-num-of-cores=4"],
        ["-AIC-Num-Cores=4"],
        ["-aic-num-cores=4", "-aic-num-cores=4"],
        ["-aic-num-cores=4", "--num_of_cores", "4"],
    ],
)
def test_dashes_separate_values_and_other_names(argv):
    assert resolved(*argv).compile.aic_num_cores == 4


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        ([], False),
        (["-aic-hw"], True),
        (["-aic-hw=true"], True),
        (["-aic-hw=1"], True),
        (["-aic-hw=FALSE"], False),
        (["-aic-hw=0"], False),
    ],
)
def test_switches(argv, value):
    assert bool(resolved(*argv).compile.aic_hw) is value


@pytest.mark.parametrize(
    ("argv", "level"),
    [(["-v"], 1), (["-vv"], 2), (["-vvv"], 3), (["-v", "-v"], 2), (["-verbose=3"], 3), (["-v=2"], 2)],
)
def test_verbosity_counts(argv, level):
    assert resolved(*argv).compile.verbose == level


def test_repeated_lists_are_joined_and_repeatable_flags_collected():
    options = resolved(
        "-execute-nodes-in-fp16=Add,Mul",
        "-execute-nodes-in-fp16=Div",
        "-onnx-define-symbol=batch,2",
        "-onnx-define-symbol",
        "seq,4",
    ).compile
    assert options.execute_nodes_in_fp16 == ("Add", "Mul", "Div")
    assert options.onnx_define_symbol == {"batch": 2, "seq": 4}


def test_a_negative_number_is_a_value_and_not_a_flag():
    assert resolved("-mos", "-1", "-ols=2").compile.mos == ()


def test_random_input_data_with_and_without_a_distribution():
    wanted = ["-convert-to-quantize", "-use-random-input-data"]
    assert resolved(*wanted).compile.use_random_input_data == "uniform"
    assert resolved(f"{wanted[0]}", f"{wanted[1]}=gaussian").compile.use_random_input_data == "gaussian"


@pytest.mark.parametrize("flag", ["-h", "-help", "--help", "--usage", "-u", "-usage"])
def test_every_form_of_help(flag):
    assert resolved(flag).run_step.help is True


def test_flags_of_the_run_step():
    run = resolved("-num-iter=3", "-aic-profiling-type=stats", "-write-output-dir=out").run_step
    assert (run.num_iter, run.aic_profiling_type, run.write_output_dir) == (3, ("stats",), Path("out"))
    assert resolved("-time=0.5").run_step.time == 0.5


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["model.onnx"], "unexpected argument model.onnx: options begin with a dash"),
        (["-"], "unexpected argument -: options begin with a dash"),
        (["--"], "unexpected argument --: options begin with a dash"),
        (
            ["-time-passes", "true"],
            "unexpected argument true: options begin with a dash; did you mean -time-passes=true?",
        ),
        (["-ols"], "-ols needs a value: -ols=VALUE"),
        (["-ols", "-time-passes"], "-ols needs a value: -ols=VALUE"),
        (["-help=yes"], "-help has no value, 'yes' was given"),
        (["-vv=2"], "-vv has no value, '2' was given"),
        (
            ["x", "-ols"],
            "2 arguments are wrong:\n  unexpected argument x: options begin with a dash\n"
            "  -ols needs a value: -ols=VALUE",
        ),
    ],
)
def test_wrong_arguments_are_all_named(argv, message):
    with pytest.raises(OptionError) as caught:
        read_argv(argv)
    assert str(caught.value) == message
    assert caught.value.code == "option.command_line"


def test_unknown_flag_is_named_with_the_nearest_flag():
    with pytest.raises(UnknownOptionError) as caught:
        resolved("-aic-binary-dirr=x", "-aic-num-core", "4")
    assert str(caught.value).splitlines() == [
        "2 options cannot be used:",
        "  unknown option -aic-binary-dirr; did you mean -aic-binary-dir?",
        "  unknown option -aic-num-core; did you mean -aic-num-cores?",
    ]


def test_nearest_flag_is_the_documented_spelling():
    assert flags_meant("-custom-io-list-fil") == ("custom-IO-list-file",)
    assert flags_meant("-output-node-names") == ("output-node-name",)
    assert flags_meant("-qqqqqq") == ()


def test_errors_name_the_flag_as_written():
    with pytest.raises(OptionError) as wrong:
        resolved("--aic-num-cores=17")
    assert wrong.value.message == "--aic-num-cores: expected an integer from 1 to 16, found '17'"
    with pytest.raises(OptionConflictError) as twice:
        resolved("-ols=1", "-ols=2")
    assert twice.value.message == "-ols has two values: give it once"


def test_written_arguments_have_the_documented_form(tmp_path):
    partitions = tmp_path / "mdp.json"
    partitions.write_text(json.dumps({"partitions": [{"name": "P", "devices": [{"deviceId": 0}]}]}))
    given = {
        "model_path": "m.onnx",
        "output_dir": "out",
        "convert_to_fp16": True,
        "retained_state": False,
        "combine_inputs": False,
        "sdp_cluster_sizes": [4, 4],
        "aic_num_cores": 8,
        "aic_pmu_events": "3F,70",
        "onnx_define_symbol": {"batch": 1, "max(a,b)": 2},
        "mdp_load_partition_config": partitions,
        "num_activations": 3,
        "strict_aic": True,
        "verbose": 2,
        "force_vtcm_spill": True,
        "graph_names": ["main"],
    }
    result = resolve(given, options_path=None, model_is_container=False)
    assert to_argv(result, sdk=True) == [
        "-m=m.onnx",
        "-aic-binary-dir=out",
        "-onnx-define-symbol=batch,1",
        "-onnx-define-symbol=max(a,b),2",
        "-convert-to-fp16",
        "-aic-num-cores=8",
        "-sdp-cluster-sizes=4,4",
        "-combine-inputs=false",
        f"-mdp-load-partition-config={partitions}",
        "-aic-pmu-events=3F,70",
        "-vv",
    ]
    ours = to_argv(result)
    assert "-strict-aic" in ours
    assert "-retained-state=false" in ours
    assert without_flag(result) == ("graph_names", "force_vtcm_spill")


def test_an_option_with_another_way_in_the_vendor_compiler_has_no_flag_there():
    flags = read_argv(["-mxint8-kv-cache", "-retained-state"])
    result = resolve({"target": "card"}, options_path=None, model_is_container=False, flags=flags)
    assert to_argv(result, sdk=True) == ["-retained-state"]
    assert without_flag(result) == ("mxint8_kv_cache",)
    assert "-mxint8-kv-cache" in to_argv(result)


def test_content_without_a_file_needs_one_to_be_written(tmp_path):
    content = {"partitions": [{"name": "P", "devices": [{"deviceId": 0}]}]}
    result = resolve({"mdp_load_partition_config": content}, options_path=None, model_is_container=False)
    with pytest.raises(OptionError, match=r"mdp_load_partition_config: expected .*flag"):
        to_argv(result)
    path = tmp_path / "mdp.json"
    assert to_argv(result, files={"mdp_load_partition_config": path}) == [
        f"-mdp-load-partition-config={path}"
    ]


def test_names_that_no_flag_can_hold_are_refused():
    result = resolve({"output_node_names": ["a,b"]}, options_path=None, model_is_container=False)
    with pytest.raises(OptionError, match="output_node_names: expected values without separators"):
        to_argv(result)


def test_unknown_options_are_passed_on_to_the_vendor_compiler_only(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("new-switch: true\nnew-list: [a, b]\nold-switch: false\nnew-map: {k: 1}\n")
    given = {"target": "card", "allow_unknown_options": True, "some_level": 3}
    flags = read_argv(["-frob", "-level=2", "-other", "x"])
    result = resolve(given, options_path=file, model_is_container=False, flags=flags)
    assert to_argv(result, sdk=True) == [
        "-some-level=3",
        "-frob",
        "-level=2",
        "-other=x",
        "-new-switch",
        "-new-list=a,b",
        "-new-map=k,1",
    ]
    assert result.warnings == ()
    with pytest.raises(UnknownOptionError, match="some_level"):
        resolve({**given, "target": "cpu"}, options_path=None, model_is_container=False)
