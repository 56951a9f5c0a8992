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
