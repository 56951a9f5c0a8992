"""Outputs of a card: the cost of rounding, and the additional cost of faults."""

import numpy as np
import pytest

import accuracy_models as models
import qaic
from qaic import accuracy
from qaic.cli import console, openqaic
from qaic.errors import OptionError
from runner_support import run


@pytest.fixture(scope="module")
def card():
    """A model, samples, and the outputs of a card that rounds correctly."""
    model, samples = models.convolutional()
    with qaic.Session(qaic.compile(model, convert_to_fp16=True).path) as session:
        outputs = [session.run(sample)["y"] for sample in samples]
    return model, samples, outputs


def write(folder, outputs, dtype=np.float32):
    folder.mkdir()
    for number, array in enumerate(outputs):
        array.astype(dtype).tofile(folder / f"y-activation-0-inf-{number}.bin")
    return folder


def first_sentence(card, against):
    model, samples, _ = card
    report = accuracy.compare(model, to="fp16", samples=samples, against=against)
    (item,) = report["fp16"].card
    return report, item, report.sentences()[0]


def test_rounding_is_what_it_must_cost(card, tmp_path):
    report, item, said = first_sentence(card, write(tmp_path / "out", card[2]))
    assert said.startswith("The card loses no more than the precision explains: output y of the card has")
    assert item.apart.is_equal
    assert item.card == item.rounded
    page = report.page(tmp_path / "page.html").read_text()
    assert page.index("The card loses ") < page.index("output y is")
    assert report.to_json()["precisions"][0]["card"][0]["is_more"] is False


def test_a_fault_is_more_than_it_must_cost(card, tmp_path):
    wrong = [np.roll(array, 1, axis=-1) for array in card[2]]
    _, item, said = first_sentence(card, write(tmp_path / "out", wrong))
    assert said.startswith("The card loses more than the precision explains: output y")
    assert item.card.sqnr_db < item.rounded.sqnr_db - 20
    assert item.apart.largest_error == max(np.abs(a - b).max() for a, b in zip(wrong, card[2], strict=True))


def test_forms(card, tmp_path):
    outputs = card[2]
    stacked = tmp_path / "outputs.npz"
    np.savez(stacked, y=np.stack(outputs))
    folder = tmp_path / "archives"
    folder.mkdir()
    for number, array in enumerate(outputs):
        np.savez(folder / f"{number}.npz", y=array)
    for against in (stacked, folder):
        assert first_sentence(card, against)[1].apart.is_equal
    # Outputs of a program with float16 outputs.
    _, item, said = first_sentence(card, write(tmp_path / "half", outputs, np.float16))
    assert "loses no more than" in said
    assert item.apart.sqnr_db > 60
    # The outputs contain only some of the samples.
    _, item, _ = first_sentence(card, write(tmp_path / "some", outputs[:2]))
    assert item.card.elements == 2 * outputs[0].size


def test_what_the_runner_writes(card, tmp_path):
    model, samples, _ = card
    folder = tmp_path / "qpc"
    qaic.compile(model, convert_to_fp16=True, output_dir=folder)
    samples[0]["x"].tofile(tmp_path / "x.raw")
    assert run("-t", folder, "-i", tmp_path / "x.raw", "--write-output-dir", tmp_path / "out") == 0
    report = accuracy.compare(model, to="fp16", samples=samples[:1], against=tmp_path / "out")
    assert report["fp16"].card[0].apart.is_equal


def archive(folder, **arrays):
    np.savez(folder / "a.npz", **arrays)
    return folder / "a.npz"


def text(folder):
    (folder / "a.npz").write_text("no archive")
    return folder / "a.npz"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "none", "found nothing in"),
        (lambda folder: folder, "neither NAME-activation-A-inf-I.bin nor"),
        (
            lambda folder: write(folder / "out", [np.zeros(3)]),
            "found 12 bytes of 'y' as y-activation-0-inf-0",
        ),
        (lambda folder: archive(folder, y=np.zeros((1, 3))), r"'y' of shape \[1, 3\]"),
        (lambda folder: archive(folder, z=np.zeros(3)), "found no output of the 5 samples"),
        (text, "cannot be read as .npz"),
    ],
)
def test_wrong_outputs(card, tmp_path, make, message):
    model, samples, _ = card
    with pytest.raises(OptionError, match=message):
        accuracy.compare(model, to="fp16", samples=samples, against=make(tmp_path))


def test_one_precision_at_a_time(card, tmp_path):
    model, samples, outputs = card
    folder = write(tmp_path / "out", outputs)
    with pytest.raises(OptionError, match="against: found the precisions fp16, int8"):
        accuracy.compare(model, to="fp16,int8", samples=samples, against=folder)
    with pytest.raises(OptionError, match="against: found tokens"):
        accuracy.compare(model, to="fp16", samples=samples, against=folder, tokens=3)


def test_command(card, tmp_path, capsys):
    model, samples, outputs = card
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    np.savez(tmp_path / "samples.npz", x=np.stack([sample["x"] for sample in samples]))
    argv = ["accuracy", str(tmp_path / "model.onnx"), "--to", "fp16"]
    argv += ["--samples", str(tmp_path / "samples.npz"), "--against", str(write(tmp_path / "out", outputs))]
    assert console.run(openqaic.tool, argv) == 0
    shown = capsys.readouterr().out
    assert "The card loses no more than the precision explains" in shown
    find = ["--find", str(tmp_path / "p.yaml"), "--target", "sqnr>=40"]
    assert console.run(openqaic.tool, [*argv, *find]) == console.USAGE
