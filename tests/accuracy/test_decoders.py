"""Decoders: tokens that the reference selects, errors of logits in each step, and errors of caches."""

import json

import numpy as np
import pytest

import accuracy_models as models
import llm_exports
from decoder_model import Oracle, Sizes, decoder, specializations
from qaic import accuracy
from qaic.accuracy.decoding import Decoder
from qaic.accuracy.prepared import prepared
from qaic.accuracy.samples import Samples
from qaic.cli import console, openqaic
from qaic.errors import OptionError
from qaic.options.resolution import resolve

PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3, 5, 8, 9, 7]]
ONE = Sizes(layers=1)
OPTIONS = {"retained_state": True, "network_specialization_config": specializations()}


def prompts(rows=PROMPTS):
    return [{"input_ids": np.array(row)} for row in rows]


@pytest.fixture(scope="module")
def report():
    return accuracy.compare(decoder(), to="fp16", samples=prompts(), tokens=6, **OPTIONS)


def chosen(oracle, prompt, count):
    """Return the tokens that a reference generates after a prompt."""
    logits, tokens = oracle.step(prompt), []
    for _ in range(count):
        tokens.append(int(logits.argmax()))
        logits = oracle.step(tokens[-1])
    return tokens


def test_tokens_are_those_of_an_oracle(report):
    decoding = report["fp16"].decoding
    for number, prompt in enumerate(PROMPTS):
        rows = decoding.steps[decoding.steps["prompt"] == number]
        assert rows["token"].tolist() == chosen(Oracle(), prompt, 6)
        assert rows["step"].tolist() == list(range(6))


def test_errors_are_those_of_rounding(report):
    item = report["fp16"]
    assert item.samples == len(PROMPTS)
    assert ((item.decoding.steps["sqnr_db"] > 40) & (item.decoding.steps["sqnr_db"] < 90)).all()
    assert [cache.name for cache in item.decoding.caches] == [
        f"past_{kind}.{layer}_RetainedState" for layer in range(2) for kind in ("key", "value")
    ]
    assert all(40 < cache.sqnr_db < 90 for cache in item.decoding.caches)
    (output,) = item.outputs
    assert output.name == "logits"
    assert output.elements == len(PROMPTS) * 6 * Sizes().vocabulary


def test_the_report_says_where_tokens_differ(report, tmp_path):
    assert "all 6 tokens of 2 prompts equal those of float32" in str(report)
    content = json.loads(report.write_json(tmp_path / "a.json").read_text())
    assert len(content["precisions"][0]["decoding"]["steps"]) == 12
    assert "Caches in fp16" in report.page(tmp_path / "a.html").read_text()


@pytest.mark.filterwarnings("ignore:mxfp6_matmul")
def test_caches_without_an_error_are_said_to_be_equal():
    """No weight of this decoder is large enough for MXFP6."""
    report = accuracy.compare(decoder(ONE), to="mxfp6", samples=prompts(), tokens=2, **OPTIONS)
    assert "mxfp6: all caches equal those of float32." in report["mxfp6"].sentences()


def planted(scale):
    """A decoder with similar logits, so rounding selects other tokens."""
    model = decoder(ONE)
    (head,) = [tensor for tensor in model.graph.initializer if tensor.name == "lm_head"]
    values = np.frombuffer(head.raw_data, np.float32).reshape(head.dims)
    # Columns in pairs whose difference is below the resolution of float16.
    values = np.repeat(values[:, ::2], 2, axis=1)[:, : head.dims[1]].copy()
    values[:, 1::2] *= np.float32(1 + scale)
    head.raw_data = values.tobytes()
    return model


def test_the_first_token_that_differs():
    model = planted(2.0**-14)
    found = accuracy.compare(model, to="fp16", samples=prompts(), tokens=8, **OPTIONS)["fp16"]
    rows = found.decoding.steps
    differs = rows[rows["token"] != rows["found"]]
    assert len(differs)
    prompt, step = found.decoding.first_difference
    assert step == differs["step"].min()
    assert found.decoding.equal_tokens == step
    assert f"number {step + 1} of prompt {prompt + 1}" in "\n".join(found.sentences())


def test_a_target_in_tokens():
    model = planted(2.0**-14)
    plan = accuracy.search(model, to="fp16", samples=prompts(), target="tokens>=8", **OPTIONS)
    assert plan.before < 8 <= plan.after
    lists = {"FP32NodeInstanceNames": list(plan.nodes)}
    again = accuracy.compare(
        model, to="fp16", samples=prompts(), tokens=8, node_precision_info_file=lists, **OPTIONS
    )
    assert again["fp16"].decoding.first_difference is None


def test_integers_are_calibrated_with_the_prompts():
    found = accuracy.compare(decoder(ONE), to="int8", samples=prompts(), tokens=3, **OPTIONS)["int8"]
    assert 0 < found.decoding.steps["sqnr_db"].min() < 60
    assert len(found.decoding.steps) == 6


@pytest.mark.parametrize("to", ["fp16", "int8"])
def test_a_cache_of_another_layout(to):
    """Slots are the second of three dimensions; the reference is onnxruntime on the whole sequence."""
    model = models.flat_decoder()
    options = {"retained_state": True, "network_specialization_config": specializations(prefill=4)}
    found = accuracy.compare(model, to=to, samples=prompts(), tokens=14, **options)[to]
    engine = models.engine(model)
    caches = {name: np.zeros((1, 24, 16), np.float32) for name in ("past_key", "past_value")}
    for number, prompt in enumerate(PROMPTS):
        expected = list(prompt)
        for _ in range(14):
            ids, places = np.array([expected]), np.arange(len(expected))[None]
            logits = engine.run(["logits"], {"input_ids": ids, "position_ids": places, **caches})[0]
            expected.append(int(logits[0, -1].argmax()))
        rows = found.decoding.steps[found.decoding.steps["prompt"] == number]
        assert rows["token"].tolist() == expected[len(prompt) :]
    with pytest.raises(
        OptionError, match="found a prompt of 9 tokens and 16 to generate, expected at most 24 together"
    ):
        accuracy.compare(model, to=to, samples=prompts(), tokens=16, **options)


def test_slots():
    sizes = Sizes(layers=1, slots=True)
    options = {**OPTIONS, "network_specialization_config": specializations(slots=3)}
    found = accuracy.compare(decoder(sizes), to="fp16", samples=prompts(), tokens=4, **options)["fp16"]
    assert found.decoding.steps["token"].tolist() == [
        token for prompt in PROMPTS for token in chosen(Oracle(ONE), prompt, 4)
    ]


@pytest.fixture(scope="module")
def shaped():
    options = resolve(OPTIONS, options_path=None, model_is_container=False).compile
    with prepared(decoder(ONE), options, "reading") as source:
        return Decoder(source.inputs, source.shaped)


def test_random_prompts(shaped):
    found = list(shaped.prompts(Samples("random"), 2))
    assert [len(prompt) for prompt in found] == [8] * 4
    assert found == list(shaped.prompts(Samples("random"), 2))


@pytest.mark.parametrize(
    ("samples", "tokens", "message"),
    [
        (
            prompts([[1, 2]]),
            31,
            "found a prompt of 2 tokens and 31 to generate, expected at most 32 together",
        ),
        (prompts([[1, 99]]), 4, "tokens outside 0 to 22"),
        ([{"input_ids": np.array([[1.5]])}], 4, "found float64"),
        ([{"ids": np.array([1])}], 4, "found the arrays ids"),
        (prompts([[]]), 4, "found float64"),
        ([{"input_ids": np.zeros((1, 0), int)}], 4, "no tokens, or"),
    ],
)
def test_wrong_prompts(shaped, samples, tokens, message):
    with pytest.raises(OptionError, match=message):
        list(shaped.prompts(Samples(samples), tokens))


@pytest.mark.parametrize("tokens", [0, True, 2.5, "3"])
def test_wrong_numbers_of_tokens(tokens):
    with pytest.raises(OptionError, match="expected the number of tokens"):
        accuracy.compare(decoder(ONE), to="fp16", samples=prompts(), tokens=tokens, **OPTIONS)


def test_other_models_make_no_tokens():
    model, samples = models.convolutional()
    with pytest.raises(OptionError, match="expected a decoder with input_ids"):
        accuracy.compare(model, to="fp16", samples=samples, tokens=4)


def test_command(tmp_path, capsys):
    import onnx

    onnx.save(decoder(ONE), tmp_path / "decoder.onnx")
    np.savez(tmp_path / "prompts.npz", input_ids=np.array([[1, 2, 3], [4, 5, 6]]))
    (tmp_path / "sets.json").write_text(json.dumps({"specializations": specializations()}))
    argv = ["accuracy", str(tmp_path / "decoder.onnx"), "--to", "fp16", "--tokens", "3"]
    argv += ["--samples", str(tmp_path / "prompts.npz"), "--retained-state"]
    argv += [f"--network-specialization-config={tmp_path / 'sets.json'}"]
    assert console.run(openqaic.tool, argv) == 0
    assert "all 3 tokens of 2 prompts" in capsys.readouterr().out


def test_an_export():
    export = llm_exports.require("llama-float16")
    entries = export.specializations
    prompt, tokens = export.greedy[0]
    found = accuracy.compare(
        export.model,
        to="fp16",
        samples=prompts([prompt]),
        tokens=8,
        retained_state=True,
        network_specialization_config=entries,
    )["fp16"]
    assert found.decoding.steps["token"].tolist() == tokens[:8]
    assert len(found.decoding.caches) == 4
    assert all(cache.sqnr_db > 30 for cache in found.decoding.caches)


def test_prompts_without_a_number_of_tokens_are_explained():
    with pytest.raises(OptionError, match="no input 'position_ids'") as caught:
        accuracy.compare(decoder(ONE), to="fp16", samples=prompts(), **OPTIONS)
    assert "--tokens N" in caught.value.hints[0]
