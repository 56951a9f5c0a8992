"""Decoders and encoders that a client exported, compiled with its flags and used in its way."""

import functools

import numpy as np
import onnxruntime as ort
import pytest

import llm_exports
import qaic
from decoder_client import Client
from qaic.cli.compile import main
from qaic.compiler.passes import store_weights

DECODERS = ["gpt2-fp16", "llama-cb3", "llama-float16", "llama-fp16", "llama-sub", "mixtral-fp16"]


def cases(*more):
    """List decoders and precisions; a sample contains one precision of each decoder."""
    return [
        pytest.param(name, is_float32, *more, marks=[pytest.mark.whole] * ((place + is_float32) % 2))
        for place, name in enumerate(DECODERS)
        for is_float32 in (True, False)
    ]


#: In float16, two logits with a smaller difference can change their order.
MARGIN = 0.01


def compiled(flags, folder):
    assert main([*flags, f"-aic-binary-dir={folder}/qpc"]) == 0
    return folder / "qpc"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Compile an export with one set of options; each program is compiled once."""

    @functools.cache
    def compiled_once(name, is_float32, *more):
        export = llm_exports.require(name)
        flags = export.float32_flags if is_float32 else export.flags
        return compiled([*flags, *more], tmp_path_factory.mktemp(name))

    return compiled_once


@pytest.fixture(scope="module")
def answers(program):
    """Continue the prompts of an export with the program of one set of options; each program runs once."""

    @functools.cache
    def continued_once(name, is_float32, *more):
        export = llm_exports.require(name)
        client = Client(program(name, is_float32, *more))
        client.skip_caches()
        return [
            llm_exports.continued(client, export.slots, prompt, len(told), number % (export.slots or 1))
            for number, (prompt, told) in enumerate(export.greedy)
        ]

    return continued_once


def check_tokens(found, expected, margin):
    """Compare tokens; at the first difference, the logits may differ by at most `margin`."""
    for number, ((tokens, margins), told) in enumerate(zip(found, expected, strict=True)):
        pairs = zip(tokens, told, strict=True)
        leaving = next((at for at, pair in enumerate(pairs) if len({*pair}) > 1), None)
        assert leaving is None or margins[leaving] < margin, (number, leaving, tokens, told)


@pytest.mark.parametrize("is_float32", [True, False])
@pytest.mark.parametrize("name", DECODERS)
def test_decoder_gives_the_tokens_of_pytorch(name, is_float32, answers):
    told = [tokens for _, tokens in llm_exports.require(name).greedy]
    # A model whose own type is float16 rounds accordingly.
    check_tokens(answers(name, is_float32), told, 0 if is_float32 and name != "llama-float16" else MARGIN)


@pytest.mark.parametrize(("name", "is_float32"), cases())
def test_decoder_gives_the_logits_of_whole_caches(name, is_float32, program):
    """The numbers are equal bit by bit: skipping unattended rows and writing single rows change nothing."""
    export = llm_exports.require(name)
    clients = [Client(program(name, is_float32, *more)) for more in ([], ["-whole-caches"])]
    for client in clients:
        client.skip_caches()
    slots = {"batch_index": np.array([[0]])} if export.slots else {}
    prompt = export.greedy[0][0]
    found, expected = (client.prefill(prompt, **slots) for client in clients)
    np.testing.assert_array_equal(found, expected)
    rows = export.slots or 1
    slots = {"batch_index": np.arange(rows)[:, None]} if export.slots else {}
    for position in range(len(prompt), len(prompt) + 6):
        tokens, positions = np.zeros((rows, 1), np.int64), np.full((rows, 1), -1)
        tokens[0], positions[0] = found.argmax(), position
        found, expected = (client.step(tokens, positions, **slots)["logits"][0] for client in clients)
        np.testing.assert_array_equal(found, expected)


# One kernel computes the products of MXFP6 weights; the decoders differ in the layers around the products.
@pytest.mark.parametrize(
    ("name", "is_float32", "more"),
    [
        *cases([]),
        ("llama-cb3", True, ["-mxfp6-matmul"]),
        ("mixtral-fp16", False, ["-mxfp6-matmul"]),
        *(
            pytest.param(name, False, ["-mxfp6-matmul"], marks=pytest.mark.whole)
            for name in ("gpt2-fp16", "llama-fp16")
        ),
    ],
)
def test_decoder_with_stored_weights_gives_the_tokens_of_the_plain_way(
    name, is_float32, more, program, answers, monkeypatch
):
    """Sums have another order, so logits differ by a rounding; tokens are equal if logits are distinct."""
    # By default, the compiler does not store weights of this size.
    plain = answers(name, is_float32, *more)
    monkeypatch.setattr(store_weights, "LEAST_ELEMENTS", 1)
    monkeypatch.setattr(store_weights, "LEAST_IN_PROGRAM", 1)
    monkeypatch.setattr(store_weights, "LEAST_FLOAT32", 1)
    stored = answers(name, is_float32, *more, "-stored-weights=true")
    for ways, is_stored in (([], False), (["-stored-weights=true"], True)):
        operators = qaic.Qpc(program(name, is_float32, *more, *ways)).plan["own_operators"]
        assert (store_weights.PRODUCT in operators) is is_stored
        assert (store_weights.EXPERTS in operators) is (is_stored and name == "mixtral-fp16")
    check_tokens(stored, [tokens for tokens, _ in plain], 1e-4 if is_float32 else MARGIN)


def feeds_of(session, symbols, seed=0):
    """Random inputs for one set of shapes: small token ids, and masks of ones."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in session.get_inputs():
        shape = [symbols.get(dim, dim) if isinstance(dim, str) else dim for dim in value.shape]
        if "mask" in value.name:
            feeds[value.name] = np.ones([int(dim) for dim in shape], np.int64)
        elif value.type == "tensor(int64)":
            feeds[value.name] = rng.integers(0, 100, [int(dim) for dim in shape])
        else:
            feeds[value.name] = rng.standard_normal([int(dim) for dim in shape]).astype(np.float32)
    return feeds


def test_encoder_with_constants_beside_its_file(tmp_path):
    export = llm_exports.require("bert")
    engine = ort.InferenceSession(str(export.model), providers=["CPUExecutionProvider"])
    feeds = feeds_of(engine, export.specializations[0]["symbols"])
    expected = engine.run(None, feeds)[0]
    with qaic.Session(compiled(export.float32_flags, tmp_path / "float32")) as session:
        np.testing.assert_allclose(next(iter(session.run(feeds).values())), expected, rtol=1e-4, atol=1e-5)
    with qaic.Session(compiled(export.flags, tmp_path / "asked")) as session:
        found = next(iter(session.run(feeds).values())).astype(np.float32)
        np.testing.assert_allclose(found, expected, atol=0.02)


def test_whisper_hears_once_and_then_reads_what_it_has_kept(tmp_path):
    """The second set of shapes has one frame: keys and values of the sound come from the caches."""
    export = llm_exports.require("whisper")
    path = compiled(export.float32_flags, tmp_path)
    rng = np.random.default_rng(0)
    sound = rng.standard_normal((1, 80, 3000)).astype(np.float32)
    nothing = np.zeros((1, 80, 1), np.float32)
    answers = []
    for later in (nothing, sound):
        with qaic.Session(path) as session:
            steps = [(sound, 50), *((later, token) for token in (7, 400, 3))]
            answers.append(
                [
                    session.run(
                        {
                            "input_features": features,
                            "input_ids": np.array([[token]]),
                            "position_ids": np.array([[place]]),
                        }
                    )["logits"]
                    for place, (features, token) in enumerate(steps)
                ]
            )
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-5, atol=1e-6)
    assert np.ptp(answers[0][1]) > 0
    # The results depend on the sound.
    with qaic.Session(path) as session:
        inputs = {"input_ids": np.array([[50]]), "position_ids": np.array([[0]])}
        other = session.run({"input_features": -sound, **inputs})["logits"]
    assert np.abs(other - answers[0][0]).max() > 1e-3
