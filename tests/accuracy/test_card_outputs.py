"""Outputs of a card: the cost of rounding, and the additional cost of faults."""

import re

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
    report, item, _ = first_sentence(card, write(tmp_path / "some", outputs[:2]))
    assert item.card.elements == 2 * outputs[0].size
    assert report.sentences()[1] == "2 of 5 samples compared: the card's outputs belong to 2 inferences."


@pytest.mark.parametrize("form", ["files", "stacked", "archives"])
@pytest.mark.parametrize(("samples", "inferences"), [(5, 5), (5, 2), (2, 5), (5, 1)])
def test_numbers_of_samples_and_outputs_that_differ_are_reported(card, tmp_path, form, samples, inferences):
    model, every, outputs = card
    against = tmp_path / "out"
    if form == "files":
        write(against, outputs[:inferences])
    elif form == "stacked":
        against = tmp_path / "out.npz"
        np.savez(against, y=np.stack(outputs[:inferences]))
    else:
        against.mkdir()
        for number, array in enumerate(outputs[:inferences]):
            np.savez(against / f"{number}.npz", y=array)
    report = accuracy.compare(model, to="fp16", samples=every[:samples], against=against)
    said = " ".join(report.sentences())
    numbers = re.search(r"(\d) of (\d) samples compared: the card's outputs belong to (\d) inf", said)
    expected = (min(samples, inferences), samples, inferences)
    assert (numbers is None) == (samples == inferences)
    assert numbers is None or tuple(map(int, numbers.groups())) == expected


@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_outputs_of_other_inputs_are_told_from_faults(tmp_path, mean):
    """Regression: the report accused a card whose outputs belonged to other inputs."""
    rng = np.random.default_rng(8)
    bias = np.full(16, mean, np.float32)
    constants = {"w": rng.standard_normal((16, 16)).astype(np.float32), "b": bias}
    nodes = [models.node("MatMul", "x w", "product"), models.node("Add", "product b", "y")]
    model = models.model_of(nodes, {"x": [1, 16]}, {"y": [1, 16]}, constants)
    samples = [{"x": rng.standard_normal((1, 16)).astype(np.float32)} for _ in range(8)]
    outputs = [sample["x"] @ constants["w"] + bias for sample in samples]
    cases = {
        "others": ([rng.standard_normal((1, 16)).astype(np.float32) @ constants["w"] + bias] * 8, True),
        "shifted": (outputs[1:] + outputs[:1], True),
        "scaled": ([array * 0.7 for array in outputs], False),
        "noisy": ([array + 0.2 * rng.standard_normal(array.shape) for array in outputs], False),
        "right": (outputs, False),
    }
    for name, (found, is_unrelated) in cases.items():
        report = accuracy.compare(model, to="fp16", samples=samples, against=write(tmp_path / name, found))
        assert ("probably belong to other inputs" in " ".join(report.sentences())) == is_unrelated, name
        assert report.to_json()["precisions"][0]["card"][0]["is_unrelated"] == is_unrelated


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
    with pytest.raises(OptionError, match="against: found random samples"):
        accuracy.compare(model, to="fp16", samples="random", against=folder)
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


def test_a_scalar_output_and_a_missing_inference(tmp_path):
    constants = {"axes": np.array([0, 1])}
    model = models.model_of(
        [models.node("ReduceSum", "x axes", "y", keepdims=0)], {"x": [2, 4]}, {"y": []}, constants
    )
    samples = [{"x": np.full((2, 4), number, np.float32)} for number in range(1, 4)]
    write(tmp_path / "out", [np.float32(8 * number) for number in range(1, 4)])
    (tmp_path / "out" / "y-activation-0-inf-1.bin").unlink()
    report = accuracy.compare(model, to="fp16", samples=samples, against=tmp_path / "out")
    assert report["fp16"].card[0].card.is_equal
    assert "2 of 3 samples compared: the card's outputs belong to 2 inferences." in report.sentences()
