"""Options that would have no effect are refused, or cause a warning."""

import pytest


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bench MODEL -n 2 --seconds 1", "argument --seconds: not allowed with argument -n/--num-iter"),
        ("bench MODEL --seconds 1 -n 2", "argument -n/--num-iter: not allowed with argument --seconds"),
        ("bench MODEL --rate 5 --beside onnxruntime", "--rate and --beside exclude each other"),
        ("inspect MODEL nodes --onnx graph.onnx", "--onnx and the view nodes exclude each other"),
        ("inspect MODEL graph --onnx graph.onnx", "--onnx and the view graph exclude each other"),
        ("inspect MODEL --color time", "--color time needs the view graph"),
        ("inspect MODEL fit --color precision", "--color precision needs the view graph"),
        ("inspect MODEL nodes -o graph.html", "-o graph.html needs the view graph"),
        ("run MODEL --rtol 1", "--rtol and --atol need --expect"),
        ("cache list --limit 2G", "--limit needs prune"),
    ],
)
def test_an_option_without_an_effect_is_refused(call, model, tmp_path, words, message):
    """Regression: --seconds, --color and a view had no effect next to other options, without a message."""
    code, out, err = call(*[str(model) if word == "MODEL" else word for word in words.split()])
    assert (code, out) == (2, "")
    assert message in err
    assert not (tmp_path / "graph.onnx").exists()


def test_outputs_are_written_and_compared_by_one_command(call, model):
    assert call("run", model, "-o", "first.npz")[0] == 0
    code, out, _ = call("run", model, "-o", "second.npz", "--expect", "first.npz")
    assert code == 0
    assert out.endswith("wrote second.npz; numpy.load opens it\nas expected: 1 of 1 output\n")


def test_unknown_keys_of_an_options_file_are_warnings(call, model, tmp_path):
    (tmp_path / "options.yaml").write_text("frobnicate: 1\n")
    code, _, err = call("compile", model, "-o", "program", "--options-path", "options.yaml")
    assert code == 0
    assert err == "warning: ignored: unknown option frobnicate (options.yaml, line 1)\n"


def test_an_option_of_other_servers_names_the_own(call, model):
    assert "unknown option --port; did you mean --http?" in call("serve", model, "--port", "9000")[2]


def test_a_folder_of_two_models_asks_for_one(call, model, tmp_path):
    (tmp_path / "other.onnx").write_bytes(model.read_bytes())
    assert "pass one of these files" in call("run", tmp_path)[2]
    model.unlink()
    assert "pass that file" in call("run", tmp_path)[2]
