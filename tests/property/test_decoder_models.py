"""Random small decoders, compared with onnxruntime, for which the caller stores the caches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

import decoder_model
import qaic
from session_models import save


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("decoders")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QAIC_CACHE_DIR", str(made / "cache"))
        yield made


@st.composite
def decoders(draw):
    groups = draw(st.integers(1, 3))
    return decoder_model.Sizes(
        layers=draw(st.integers(1, 2)),
        heads=groups * draw(st.integers(1, 3)),
        groups=groups,
        width=2 * draw(st.integers(1, 4)),
        vocabulary=draw(st.integers(2, 40)),
        context=draw(st.integers(8, 24)),
        masked=draw(st.sampled_from([-np.inf, float(np.finfo(np.float32).min), -10_000.0])),
        window=draw(st.none() | st.integers(1, 8)),
        slots=draw(st.booleans()),
        layer_functions=draw(st.booleans()),
        opset=draw(st.sampled_from([17, 18])),
    )


@settings(max_examples=16, deadline=None)
@given(data=st.data(), sizes=decoders())
def test_prefill_in_chunks_and_decode_give_the_logits_of_onnxruntime(folder, data, sizes):
    """Sequences in any order, each in a separate slot; unused slots have position -1."""
    chunk = data.draw(st.integers(2, 6), "chunk")
    slots = data.draw(st.integers(1, 3), "slots") if sizes.slots else None
    seed = data.draw(st.integers(0, 9), "seed")
    rng = np.random.default_rng(seed)
    config = decoder_model.specializations(chunk, context=sizes.context, slots=slots)
    if slots == 1:
        for entry in config:
            entry["symbols"].pop("full_batch_exec_size", None)
    path = save(folder, decoder_model.decoder(sizes, seed))
    with qaic.Session(path, network_specialization_config=config, retained_state=True) as session:
        oracles = [decoder_model.Oracle(sizes, seed) for _ in range(slots or 1)]
        lengths = [0] * len(oracles)

        def prefill(slot, tokens):
            padded = -(-len(tokens) // chunk) * chunk
            ids, positions = np.zeros((1, padded), np.int64), np.full((1, padded), -1)
            ids[0, : len(tokens)], positions[0, : len(tokens)] = tokens, np.arange(len(tokens))
            for start in range(0, padded, chunk):
                piece = np.s_[:, start : start + chunk]
                feed = {"input_ids": ids[piece], "position_ids": positions[piece]}
                logits = session.run(feed | ({"batch_index": np.array([[slot]])} if slots else {}))["logits"]
            return logits[0, 0]

        def decode(slot, token):
            rows = slots or 1
            ids, positions = np.zeros((rows, 1), np.int64), np.full((rows, 1), -1)
            ids[slot], positions[slot] = token, lengths[slot]
            feed = {"input_ids": ids, "position_ids": positions}
            feed |= {"batch_index": np.arange(rows)[:, None]} if slots else {}
            return session.run(feed)["logits"][slot, 0]

        for _ in range(data.draw(st.integers(1, 6), "steps")):
            slot = data.draw(st.integers(0, len(oracles) - 1), "slot")
            oracle = oracles[slot]
            # A slot is used again from position 0 and overwrites its old contents.
            if not lengths[slot] or data.draw(st.booleans(), "again"):
                tokens = rng.integers(
                    0, sizes.vocabulary, data.draw(st.integers(1, sizes.context - 1), "length")
                )
                oracle.restart()
                found, expected = prefill(slot, tokens), oracle.step(tokens)
                lengths[slot] = len(tokens)
            elif lengths[slot] < sizes.context:
                token = int(rng.integers(0, sizes.vocabulary))
                found, expected = decode(slot, token), oracle.step([token])
                lengths[slot] += 1
            else:
                continue
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=12, deadline=None)
@given(sizes=decoders(), elem_type=st.sampled_from([TensorProto.FLOAT16, TensorProto.BFLOAT16]))
def test_decoders_of_half_types_answer_near_those_of_float32(folder, sizes, elem_type):
    """Weights have the values of their type on both sides; the program also rounds computed values."""
    # Exporters use minus infinity, or the smallest number of the type.
    masked = sizes.masked if np.isinf(sizes.masked) else max(sizes.masked, -65504.0)
    sizes = replace(sizes, elem_type=elem_type, masked=masked)
    options = (
        {"aic_hw_version": "ai200", "allow_hw_mismatch": True} if elem_type == TensorProto.BFLOAT16 else {}
    )
    slots = 2 if sizes.slots else None
    path = save(folder, decoder_model.decoder(sizes))
    with qaic.Session(
        path,
        network_specialization_config=decoder_model.specializations(4, context=sizes.context, slots=slots),
        retained_state=True,
        **options,
    ) as session:
        tokens = np.arange(4)[None] % sizes.vocabulary
        feed = {"input_ids": tokens, "position_ids": np.arange(4)[None]}
        feed |= {"batch_index": np.array([[1]])} if slots else {}
        found = session.run(feed)["logits"][0, 0]
        expected = decoder_model.Oracle(sizes).step(tokens)
    unit = 2.0**-7 if elem_type == TensorProto.BFLOAT16 else 2.0**-10
    np.testing.assert_allclose(found, expected, atol=32 * unit * np.abs(expected).max())
