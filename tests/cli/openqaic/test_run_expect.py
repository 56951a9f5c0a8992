"""`openqaic run --expect` compares the outputs with those in a file."""

import importlib
import json
import runpy
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import qaic
from guide_blocks import ROOT
from qaic.cli.openqaic import main
from qaic.cli.openqaic.tensor_files import find_differences

ELEMENTS = st.one_of(
    st.floats(width=32), st.sampled_from([0.0, 1.0, 1.0 + 2**-20, 1.001, float("nan"), float("inf")])
)
ARRAYS = arrays.arrays(np.float32, (2, 3), elements=ELEMENTS)


@given(ARRAYS, ARRAYS, st.sampled_from([0.0, 1e-5, 1e-2]), st.sampled_from([0.0, 1e-5, 1.0]))
def test_floats_differ_as_numpy_says(tmp_path_factory, found, expected, rtol, atol):
    path = tmp_path_factory.mktemp("expect") / "expected.npz"
    np.savez(path, y=expected)
    try:
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(
                found.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol
            )
        is_equal = True
    except AssertionError:
        is_equal = False
    assert (find_differences({"y": found}, path, rtol, atol) == {}) == is_equal


def test_large_integers_are_compared_exactly(tmp_path):
    np.savez(tmp_path / "e.npz", y=np.array([2**53]))
    found = find_differences({"y": np.array([2**53 + 1])}, tmp_path / "e.npz", 1.0, 1.0)
    assert found["y"].startswith("1 of 1 elements; the largest error is 1, at [0]: ")


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["make_model.py", "model.onnx"])
    runpy.run_path(str(ROOT / "examples" / "make_model.py"), run_name="__main__")
    assert main(["run", "model.onnx", "-o", "golden.npz"]) == 0
    return "model.onnx"


def test_the_exit_code_shows_a_difference(model, capsys):
    assert main(["run", model, "--expect", "golden.npz"]) == 0
    assert "as expected: 1 of 1 output" in capsys.readouterr().out
    assert main(["run", model, "--expect", "golden.npz", "-o", "golden.npz"]) == 2
    assert "golden.npz" in capsys.readouterr().err
    held = dict(np.load("golden.npz"))
    held["y"][0, 5] += 0.5
    np.savez("golden.npz", **held)
    assert main(["run", model, "--expect", "golden.npz"]) == 1
    shown = capsys.readouterr()
    assert "as expected: 0 of 1 output" in shown.out
    _, error, hint = shown.err.splitlines()
    assert error.startswith(
        "error: output 'y' differs from golden.npz: 1 of 16 elements; the largest error is 0.5, "
    )
    assert ", at [0, 5]: found " in error
    assert error.endswith(" [run.expect]")
    assert hint.startswith("hint: --rtol X and --atol X ")
    assert main(["run", model, "--expect", "golden.npz", "--atol", "0.6", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == {}


@pytest.mark.parametrize(
    ("arrays_of_file", "code", "text"),
    [
        ({"z": np.zeros((1, 16))}, 1, "has the arrays ['z'], expected outputs of the program: ['y']"),
        ({}, 1, "output 'y' differs from golden.npz: the file has no such array"),
        ({"y": np.zeros(16)}, 1, "found shape [1, 16], expected [16] of float64"),
        ({"y": np.zeros((1, 16), "U2")}, 1, "expected [1, 16] of <U2"),
    ],
)
def test_files_that_do_not_fit(model, capsys, arrays_of_file, code, text):
    np.savez("golden.npz", **arrays_of_file)
    assert main(["run", model, "--expect", "golden.npz"]) == code
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--rtol", "1"], ["--expect", "golden.npz", "--atol", "-1"]])
def test_tolerances_out_of_place_are_refused(model, arguments):
    with pytest.raises(SystemExit, match="2"):
        raise SystemExit(main(["run", model, *arguments]))


@pytest.mark.parametrize("flag", ["-V", "--version"])
@pytest.mark.parametrize("tool", ["compile", "openqaic", "opstats", "qpc", "runner", "util"])
def test_every_tool_shows_its_version(tool, flag, capsys):
    with pytest.raises(SystemExit, match="0"):
        raise SystemExit(importlib.import_module(f"qaic.cli.{tool}").main([flag]))
    assert capsys.readouterr().out.splitlines()[0].endswith(f" {qaic.__version__}")


@pytest.mark.parametrize("words", [["run", "-i"], ["run", "--expect"], ["bench", "-i"], ["profile", "-i"]])
def test_missing_files_are_found_before_a_model_is_compiled(model, capsys, words):
    capsys.readouterr()
    assert main([words[0], model, words[1], "goldn.npz", "--aic-num-cores", "3"]) == 1
    expected = "error: goldn.npz: No such file or directory; did you mean golden.npz?\n"
    assert capsys.readouterr().err == expected


def test_an_array_of_another_type_has_a_hint_about_the_file(program, call):
    np.save("x.npy", np.full((3,), "text"))
    _, _, err = call("run", program, "-i", "x.npy")
    assert ".astype" not in err
    assert "\nhint: write the file again, as float32 of shape " in err
