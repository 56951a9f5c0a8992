"""Decision of an output: the largest value, or the result of a user's function."""

import sys

import numpy as np
import pytest

import accuracy_models as models
from qaic import accuracy
from qaic.cli import console, openqaic
from qaic.errors import OptionError


@pytest.fixture(scope="module")
def chain():
    model, samples, _ = models.overflowing((1,))
    return model, samples


def signs(name, array):
    assert name == "y3"
    return array > 0


def longest_run(name, array):
    """One decision of a sample: a text."""
    return "".join("ab"[int(value)] for value in (array.reshape(-1) > 0))


def rows_above(name, array):
    """Use all decisions; the two sides have different numbers of them."""
    return array[np.abs(array) > 1]


def outputs_of(model, samples, **options):
    import qaic

    with qaic.Session(qaic.compile(model, **options).path) as session:
        return [session.run(sample)["y3"] for sample in samples]


def test_shares_are_those_of_numpy(chain):
    model, samples = chain
    plain = outputs_of(model, samples)
    rounded = outputs_of(model, samples, convert_to_fp16=True)

    def same(decide):
        return accuracy.compare(model, to="fp16", samples=samples, decide=decide)["fp16"].outputs[0].same

    assert same(signs) == np.mean([(a > 0) == (b > 0) for a, b in zip(plain, rounded, strict=True)])
    texts = [longest_run("y3", a) == longest_run("y3", b) for a, b in zip(plain, rounded, strict=True)]
    assert same(longest_run) == np.mean(texts)
    pairs = [(rows_above("", a), rows_above("", b)) for a, b in zip(plain, rounded, strict=True)]
    equal = sum(int((a == b).sum()) for a, b in pairs if a.shape == b.shape)
    assert same(rows_above) == equal / sum(a.size for a, _ in pairs)


def test_a_search_for_decisions_of_the_user(chain):
    model, samples = chain
    plan = accuracy.search(model, to="fp16", samples=samples, target="same>=99%", decide=signs)
    lists = {"FP32NodeInstanceNames": list(plan.nodes)}
    kept = outputs_of(model, samples[:4], convert_to_fp16=True, node_precision_info_file=lists)
    plain = outputs_of(model, samples[:4])
    assert plan.after == np.mean([(a > 0) == (b > 0) for a, b in zip(plain, kept, strict=True)])
    assert plan.before < 0.99 <= plan.after


def test_of_a_card(chain, tmp_path):
    model, samples = chain
    np.savez(tmp_path / "card.npz", y3=np.stack(outputs_of(model, samples)))
    report = accuracy.compare(model, to="fp16", samples=samples, against=tmp_path / "card.npz", decide=signs)
    (card,) = report["fp16"].card
    assert card.card.same == 1
    assert card.rounded.same == report["fp16"].outputs[0].same < 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("no_such_module:f", "which cannot be imported"),
        ("json:no_such_function", "which cannot be imported"),
        ("json:decoder", "which is not a function"),
        ("argmax", "expected a function of a name and an array, or module:function"),
        (3, "expected a function of a name and an array"),
    ],
)
def test_what_is_no_function(chain, wrong, message):
    with pytest.raises(OptionError, match=message):
        accuracy.compare(chain[0], to="fp16", samples=chain[1], decide=wrong)


def test_command(chain, tmp_path, monkeypatch, capsys):
    """Functions are imported from the current folder of the command."""
    model, samples = chain
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    np.savez(tmp_path / "samples.npz", x=np.stack([sample["x"] for sample in samples]))
    (tmp_path / "my_decisions.py").write_text(
        "def nothing(name, array):\n    return 0\n\ndef worst(found, reference):\n    return 1.0\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    argv = ["accuracy", "model.onnx", "--to", "fp16", "--samples", "samples.npz"]
    assert console.run(openqaic.tool, [*argv, "--decide", "my_decisions:nothing"]) == 0
    assert "100.0 % equal decisions" in capsys.readouterr().out
    search = ["--target", "my_decisions:worst>=1", "--find", "found.yaml"]
    assert console.run(openqaic.tool, [*argv, *search]) == 0
    assert (tmp_path / "found.yaml").exists()
