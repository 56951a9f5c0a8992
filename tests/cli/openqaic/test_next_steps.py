"""Commands that ``openqaic`` prints as next steps and hints work as printed."""

import json
import os
import re
import shlex
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import accuracy_models
import decoder_model
from qaic.cli import openqaic
from session_models import affine, model_of_open_batch, save

QPCS = Path(__file__).parents[2] / "data" / "qpc"


@pytest.mark.parametrize(("options", "following"), [((), "inspect"), (("--stats-level", "70"), "profile")])
def test_the_next_step_of_a_container_works_for_it(call, model, options, following):
    assert call("compile", model, "-o", "program", *options)[0] == 0
    code, out, _ = call("bench", "program", "-n", "2", "--warm-up", "0")
    assert code == 0
    words = shlex.split(out.splitlines()[-1].removeprefix("next: "))
    assert words[:3] == ["openqaic", following, "program"]
    assert call(*words[1:])[0] == 0


@pytest.mark.run_profiles
@pytest.mark.parametrize("options", [[], ["--convert-to-fp16"]])
def test_profile_of_a_program_without_statistics_names_commands_that_measure_it(
    call, model, tmp_path, options
):
    assert call("compile", model, "-o", "plain", *options)[0] == 0
    code, _, err = call("profile", "plain")
    assert code == 1
    first, second = [line.removeprefix("hint: ") for line in err.splitlines()[1:]]
    assert "--stats-level 70" in first
    for command in second.split("`")[1::2]:
        assert call(*shlex.split(command)[1:])[0] == 0


@pytest.mark.run_profiles
@pytest.mark.parametrize("output", [[], ["-o", "page.html"]])
def test_a_baseline_without_statistics_names_commands_that_compare_with_it(call, tmp_path, output):
    """Regression: the commands compared nothing; they had lost the model, its input, options and output."""
    model = save(tmp_path, model_of_open_batch())
    np.save("x.npy", np.ones((2, 4), np.float32))
    made = [str(model), "-i", "x=x.npy", "--onnx-define-symbol=batch,2"]
    assert call("compile", model, made[-1], "-o", "plain", "--convert-to-fp16")[0] == 0
    code, _, err = call("profile", *made, "--against", "plain", *output)
    assert code == 1
    commands = [shlex.split(text) for text in err.splitlines()[-1].split("`")[1::2]]
    for command in commands:
        code, out, complaint = call(*command[1:])
        assert code == 0, complaint
    assert commands[-1] == [
        *("openqaic", "profile", *made, "--against", "baseline/programqpc.bin", *output),
    ]
    assert "than the baseline" in out or "the same time" in out
    assert (tmp_path / "page.html").exists() is bool(output)


@pytest.mark.parametrize("path", sorted(QPCS.glob("s*.qpc")), ids=lambda path: path.stem)
def test_the_next_step_of_a_container_of_a_card_is_a_command_that_runs(call, path):
    code, out, _ = call("inspect", path)
    assert code == 0
    step = out.splitlines()[-1].removeprefix("next: ")
    assert step.startswith("openqaic inspect ")
    assert call(*shlex.split(step)[1:])[0] == 0


def test_a_container_without_a_graph_names_a_command_that_shows_it(call):
    path = QPCS / "s01_simple_f32_file.qpc"
    code, _, err = call("inspect", path, "nodes")
    assert code == 1
    hint = err.splitlines()[-1].split("`")[1]
    assert call(*shlex.split(hint)[1:])[0] == 0


@pytest.mark.parametrize(
    ("flags", "precision"),
    [
        (["--convert-to-fp16"], "fp16"),
        (["--convert-to-quantize"], "int8"),
        (["--convert-to-quantize", "--quantization-precision", "Int16"], "int16"),
        (["--convert-to-fp16", "--mxfp6-matmul"], "fp16+mxfp6"),
    ],
)
def test_the_next_step_of_reduced_precision_is_a_command_that_runs(call, tmp_path, flags, precision):
    model = save(tmp_path, model_of_open_batch())
    code, out, _ = call("compile", model, "-o", "program", "--onnx-define-symbol", "batch,2", *flags)
    assert code == 0
    step = re.search("^next, for accuracy: (.*)", out, re.MULTILINE)[1]
    assert step.endswith(f"--to {precision}")
    assert call(*shlex.split(step)[1:])[0] == 0


#: options that make a command short
_SHORT = {"bench": ["-n", "2", "--warm-up", "0"], "profile": ["-n", "2"]}


@pytest.mark.parametrize(
    "first",
    [
        "compile model.onnx",
        "compile model.onnx -o program",
        "compile model.onnx -o program --convert-to-fp16",
        "compile model.onnx --convert-to-quantize --use-random-input-data --aic-num-cores 2",
        "compile lossy.onnx --convert-to-quantize --input-list-file list.txt",
        "accuracy lossy.onnx --to int8 --samples list.txt",
        "accuracy model.onnx --to fp16",
        "accuracy lossy.onnx --to fp16",
        "accuracy lossy.onnx --to int8",
        "accuracy lossy.onnx --to fp16,int8 -o page.html",
        "check model.onnx --aic-num-cores 2",
        "run model.onnx",
    ],
)
def test_next_steps_end_and_keep_what_was_named(call, tmp_path, first):
    """Regression: commands to compile and to compare led to each other, without the folder of the program."""
    save(tmp_path, affine())
    lossy, samples, _ = accuracy_models.overflowing()
    onnx.save(lossy, tmp_path / "lossy.onnx")
    for at, sample in enumerate(samples):
        np.save(tmp_path / f"{at}.npy", sample["x"])
    Path("list.txt").write_text("".join(f"{at}.npy\n" for at in range(len(samples))))
    pending, leads_to = {first}, {}
    while pending:
        command = pending.pop()
        words = shlex.split(command)
        code, out, err = call(*words, *_SHORT.get(words[0], []))
        assert code == 0, err
        found = re.findall("^next(?:, [^:]*)?: openqaic (.*)", out, re.MULTILINE)
        # The user replaces FILE.
        steps = [step for step in found if "FILE" not in step.split()]
        leads_to[command] = steps
        if "list.txt" in first and words[0] == "accuracy":
            assert words[words.index("--samples") + 1] == "list.txt"
        pending |= {step for step in steps if step not in leads_to}
        if words[0] == "compile" and "-o" in words:
            folder = words[words.index("-o") + 1]
            assert any(step.startswith(f"bench {folder}/") for step in steps)
    # This raises CycleError if commands lead to each other.
    TopologicalSorter(leads_to).prepare()


@pytest.mark.parametrize("command", ["run", "bench", "profile"])
def test_the_next_step_repeats_what_made_this_run_possible(call, tmp_path, command):
    """The model needs the size to compile, and the run needs the input for its numbers."""
    model = save(tmp_path, model_of_open_batch())
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    made = [model, "-i", "x=x.npy", "-d", "0", "--onnx-define-symbol", "batch,2"]
    short = {"bench": ["-n", "1"], "profile": ["-n", "1"]}
    code, out, _ = call(command, *made, *short.get(command, []))
    assert code == 0
    step = shlex.split(out.splitlines()[-1].removeprefix("next: "))
    assert step[2:] == [str(model), "-i", "x=x.npy", "-d", "0", "--onnx-define-symbol=batch,2", *step[8:]]
    assert call(*step[1:], *short.get(step[1], []))[0] == 0


@pytest.mark.parametrize("command", ["run", "bench -n 1", "profile -n 1"])
def test_the_next_step_repeats_the_conversion_of_pictures(call, tmp_path, command):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    image.new("RGB", (5, 6)).save(tmp_path / "x.png")
    picture = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 6, 5])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 6, 5])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "negated", [picture], [result])
    model = save(
        tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    )
    name, *short = command.split()
    pixels = ["-i", "x.png", "--mean=-1.5,2,3", "--scale=58"]
    code, out, err = call(name, model, "-i", "x.png", "--mean", "-1.5,2,3", "--scale", "58", *short)
    assert code == 0
    assert "no effect" not in err
    assert shlex.split(out.splitlines()[-1])[4:8] == pixels
    for option, value in (("--mean", "one"), ("--scale", "0"), ("--scale", "1,-0.0,1")):
        code, _, err = call(name, model, "-i", "x.png", option, value)
        assert code == 2
        assert f"argument {option}: {value!r}" in err
    code, _, err = call(name, model, "--scale", "58", *short)
    assert code == 0
    assert "warning: --mean and --scale have no effect without a picture\n" in err


def test_the_next_step_of_a_program_with_state_measures_it(call, tmp_path, monkeypatch):
    """A session runs one activation of such a program, even on a host with many processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    onnx.save(decoder_model.decoder(), tmp_path / "decoder.onnx")
    (tmp_path / "shapes.json").write_text(json.dumps(decoder_model.specializations()))
    options = ("--retained-state", "--network-specialization-config", "shapes.json")
    code, out, _ = call("compile", "decoder.onnx", "-o", "program", *options)
    assert code == 0
    words = shlex.split(out.splitlines()[-1].removeprefix("next: "))
    assert words[1] == "bench"
    code, out, err = call(*words[1:], "-n", "2", "--warm-up", "0", "--json")
    assert code == 0, err
    assert [row["streams"] for row in json.loads(out)["measurements"]] == [1]
    code, out, err = call(*words[1:], "-n", "2", "--streams", "1,2")
    assert (code, out) == (2, "")
    assert "--streams 2: a program with retained state runs one stream" in err


@pytest.mark.parametrize("first", [["n", None], [None, "2*n"], ["n", "n*m"], ["past + seq", None]])
@pytest.mark.parametrize("second", [["n*m", "n"], ["past", "past + seq"], [None, "(n + 1)//2"], ["2*n", 3]])
@pytest.mark.parametrize("given", [[], ["--shape=a:3x6"]])
def test_one_hint_gives_all_sizes(call, tmp_path, first, second, given):
    """Regression: a hint gave the sizes of some inputs, and the next error asked for those of the others."""
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("a", first), ("b", second), ("y", None), ("z", None))
    ]
    nodes = [helper.make_node("Neg", ["a"], ["y"]), helper.make_node("Neg", ["b"], ["z"])]
    graph = helper.make_graph(nodes, "g", values[:2], values[2:])
    imports = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), tmp_path / "m.onnx")
    code, _, err = call("inspect", "m.onnx", *given)
    if code:
        flags = shlex.split(err.splitlines()[-1].partition("e.g. ")[2])
        code, _, err = call("inspect", "m.onnx", *given, *flags)
    assert code == 0, err


def test_an_unknown_option_points_to_the_help_of_its_command(call, model):
    code, _, err = call("compile", model, "--nothing-like-it")
    assert code == 2
    assert err.splitlines()[-1] == "hint: `openqaic compile --help` shows the options"
    assert call("compile", "--help")[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        "accuracy --to fp8",
        "accuracy --to=fp8",
        "accuracy --to fp16 --samples no.npz",
        "check --card mini",
        "run --shape 2x3x4x5x6",
        "run --shape=2x3x4x5x6",
        "bench -n 2 --shapes x:2x3x4x5x6",
        "run --model-input x:2x3x4x5x6",
    ],
)
def test_errors_name_an_option_as_it_was_typed(call, model, words):
    command, *options = words.split()
    code, _, err = call(command, model, *options)
    assert code == 2
    wrong = [word.partition("=")[0] for word in options if word.startswith("--")][-1]
    assert re.search(rf"^error: {wrong}: (input .*: )?found ", err)


@pytest.mark.parametrize(
    "words", ["{model} --errors errors -o p.html", "{model} --options-path options_path", "convert_to_fp16"]
)
def test_a_missing_file_named_like_an_option_keeps_its_name(call, model, words):
    code, _, err = call("profile", *words.format(model=model).split())
    assert code == 1
    name = words.split(" -o ")[0].split()[-1]
    assert err.startswith(f"error: {name}: ")


def test_a_word_of_inspect_leads_to_it(capsys):
    with pytest.raises(SystemExit):
        openqaic.main(["fit"])
    assert "did you mean openqaic inspect MODEL fit?" in capsys.readouterr().err
