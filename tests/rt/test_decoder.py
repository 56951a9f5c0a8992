"""A decoder with caches on the device, in the way of clients of the vendor's binding.

The test compares every step with onnxruntime, which receives the caches as ordinary tensors that grow.
"""

from __future__ import annotations

import numpy as np
import pytest

import decoder_model
import qaicrt
from decoder_client import CHUNK, Client
from decoder_model import Oracle
from qaic.compiler.driver import compile_model
from qaic.options import resolve
from qaicrt import QStatus

SIZES = decoder_model.Sizes()
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def compiled(folder, **options):
    given = {
        "network_specialization_config": decoder_model.specializations(CHUNK),
        "retained_state": True,
        **options,
    }
    found = resolve(given, options_path=None, model_is_container=False)
    return compile_model(decoder_model.decoder(), found.compile, found.set_compile, output_dir=folder)


@pytest.fixture(scope="module")
def program_folder(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("decoder")).parent


def prompt(length, seed=0):
    return np.random.default_rng(seed).integers(0, SIZES.vocabulary, length)


def prefill(client, oracle, tokens):
    """Feed a prompt in chunks, the last one padded with position -1; return the logits after the prompt."""
    found, expected = client.prefill(tokens), oracle.step(tokens)
    np.testing.assert_allclose(found, expected, **TOLERANCE)
    return expected


def decode(client, oracle, first, start, steps):
    token = first
    for place in range(start, start + steps):
        found = client.step(token, place)
        assert list(found) == ["logits"]
        expected = oracle.step([token])
        np.testing.assert_allclose(found["logits"][0, 0], expected, **TOLERANCE)
        assert found["logits"][0, 0].argmax() == expected.argmax()
        token = int(expected.argmax())


@pytest.mark.parametrize("length", [1, CHUNK, 2 * CHUNK + 3])
def test_prompt_in_chunks_then_tokens_with_the_caches_left_on_the_device(program_folder, length):
    client, oracle = Client(program_folder), Oracle()
    client.skip_caches()
    tokens = prompt(length)
    logits = prefill(client, oracle, tokens)
    decode(client, oracle, int(logits.argmax()), length, SIZES.context - length)


def test_allowed_shapes_list_prefill_then_decode(program_folder):
    client = Client(program_folder, activate=False)
    index = client.index["input_ids"]
    shapes = [list(entry.shapes[index].dims) for entry in client.described.allowed_shapes]
    assert shapes == [[1, CHUNK], [1, 1]]


def test_caches_that_are_fetched_are_the_oracles(program_folder):
    client, oracle = Client(program_folder), Oracle()
    client.skip_caches()
    prefill(client, oracle, prompt(CHUNK + 2))
    wanted = {f"{name}_RetainedState": np.zeros(SIZES.cache_shape(), np.float32) for name in SIZES.caches}
    client.set(**wanted)
    found = client.step(5, CHUNK + 2)
    oracle.step([5])
    for name in SIZES.caches:
        known = oracle.caches[name].shape[2]
        cache = found[f"{name}_RetainedState"]
        np.testing.assert_allclose(cache[:, :, :known], oracle.caches[name], **TOLERANCE)
        # Padding writes nothing: all other slots still contain the initial zeros.
        assert not cache[:, :, known:].any()


def test_caches_that_are_given_replace_those_on_the_device(program_folder):
    first, second = Client(program_folder), Client(program_folder)
    oracle = Oracle()
    first.skip_caches()
    prefill(first, oracle, prompt(CHUNK))
    # Another activation continues with caches that the host copies to it.
    second.skip_caches()
    prefill(second, Oracle(), prompt(3, seed=9))
    room = SIZES.context - CHUNK
    second.set(**{n: np.pad(c, ((0, 0), (0, 0), (0, room), (0, 0))) for n, c in oracle.caches.items()})
    found = second.step(4, CHUNK)
    np.testing.assert_allclose(found["logits"][0, 0], oracle.step([4]), **TOLERANCE)
    second.skip_caches()
    decode(second, oracle, 6, CHUNK + 1, 3)


def test_activation_again_begins_with_empty_caches(program_folder):
    client = Client(program_folder)
    client.skip_caches()
    prefill(client, Oracle(), prompt(CHUNK))
    client.exec_obj = None
    assert client.program.deactivate() == QStatus.QS_SUCCESS
    assert client.program.activate() == QStatus.QS_SUCCESS
    client.exec_obj = qaicrt.ExecObj(client.context, client.program)
    oracle = Oracle()
    logits = prefill(client, oracle, prompt(3, seed=4))
    decode(client, oracle, int(logits.argmax()), 3, 4)


def test_exec_objects_of_one_program_share_the_caches_in_the_order_of_submission(program_folder):
    client, oracle = Client(program_folder), Oracle()
    tokens = prompt(3 * CHUNK, seed=2)
    others = []
    for start in range(0, len(tokens), CHUNK):
        other = Client.__new__(Client)
        other.__dict__ |= client.__dict__
        other.buffers = list(client.buffers)
        other.dims = qaicrt.BufferDimensionsVecRef(list(client.dims))
        other.exec_obj = qaicrt.ExecObj(client.context, client.program)
        other.skip_caches()
        other.place(tokens[start : start + CHUNK], np.arange(start, start + CHUNK))
        others.append(other)
    # All chunks are submitted before the first result is read.
    for other in others:
        other.submit()
    for number, other in enumerate(others):
        expected = oracle.step(tokens[number * CHUNK : (number + 1) * CHUNK])
        np.testing.assert_allclose(other.finish()["logits"][0, 0], expected, **TOLERANCE)


def test_shapes_of_no_specialization_fail_and_leave_the_caches_alone(program_folder, capfd):
    client, oracle = Client(program_folder), Oracle()
    client.skip_caches()
    prefill(client, oracle, prompt(CHUNK))
    # The tokens have the shape of one specialization, the positions that of another.
    client.set(input_ids=np.zeros((1, CHUNK), np.int64), position_ids=np.zeros((1, 1), np.int64))
    client.submit()
    assert client.exec_obj.waitForCompletion() == QStatus.QS_INVAL
    assert "No matching dimension found" in capfd.readouterr().err
    decode(client, oracle, 1, CHUNK, 3)


def test_decoder_with_the_rounding_of_the_card(tmp_path):
    # Both sides round, so the reference is the same program with caches in the caller's memory.
    state = Client(compiled(tmp_path / "state", convert_to_fp16=True).parent)
    plain = Client(compiled(tmp_path / "plain", convert_to_fp16=True, retained_state=False).parent)
    state.skip_caches()
    caches = {name: np.zeros(SIZES.cache_shape(), np.float32) for name in SIZES.caches}
    tokens = prompt(CHUNK + 3, seed=6)
    steps = [(tokens[:CHUNK], np.arange(CHUNK)), *((tokens[i], i) for i in range(CHUNK, len(tokens)))]
    for piece, places in steps:
        plain.set(**caches, **{f"{name}_RetainedState": array for name, array in caches.items()})
        expected = plain.step(piece, places)
        caches = {name: expected[f"{name}_RetainedState"] for name in SIZES.caches}
        np.testing.assert_array_equal(state.step(piece, places)["logits"], expected["logits"])
