"""Decoders that read only attended rows and write only changed rows equal those with whole caches, bit by
bit.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decoder_model
import qaic
from decoder_client import Client, compiled


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = tmp_path_factory.mktemp("decoders")
    return (made / str(number) for number in itertools.count())


def both(model, config, folders, **options):
    """Clients of a program with whole caches and of one with caches in place, and the plan of the latter."""
    whole = compiled(model, config, next(folders), whole_caches=True, **options)
    narrow = compiled(model, config, next(folders), **options)
    clients = Client(whole), Client(narrow)
    for client in clients:
        client.skip_caches()
    assert "state_rows" not in qaic.Qpc(whole).plan
    return *clients, qaic.Qpc(narrow).plan


def states(client, sizes, rows):
    """Run an inference of only padding, which writes nothing, and return the caches."""
    names = [f"{name}_RetainedState" for name in sizes.caches]
    dtype = client.dtypes[names[0]]
    shape = sizes.cache_shape(rows)
    if dtype == np.uint8:
        shape = (*shape[:-1], 33 * -(-shape[-1] // 32))
    client.set(**{name: np.zeros(shape, dtype) for name in names})
    more = {"batch_index": np.array([[0]])} if sizes.slots else {}
    tokens = np.zeros((1, client.chunk), np.int64)
    found = client.step(tokens, np.full_like(tokens, -1), **more)
    client.skip(names)
    return {name: found[name] for name in names}


@st.composite
def decoders(draw):
    groups = draw(st.integers(1, 3))
    return decoder_model.Sizes(
        layers=draw(st.integers(1, 2)),
        heads=groups * draw(st.integers(1, 3)),
        groups=groups,
        width=2 * draw(st.integers(1, 4)),
        vocabulary=draw(st.integers(2, 40)),
        context=draw(st.integers(8, 24) | st.integers(100, 200)),
        masked=draw(st.sampled_from([-np.inf, float(np.finfo(np.float32).min), -10_000.0])),
        window=draw(st.none() | st.integers(1, 8)),
        slots=draw(st.booleans()),
        layer_functions=draw(st.booleans()),
        opset=draw(st.sampled_from([17, 18])),
        computed_scale=draw(st.booleans()),
    )


#: Types at the interface and inside -> options without names.
BORDERS = {
    "float32": {},
    "float16": {"convert_to_fp16": True},
    "float32 of float16": {"convert_to_fp16": True},
    "MXINT8": {"mxint8_kv_cache": True},
    "MXINT8 of float16": {"convert_to_fp16": True, "mxint8_kv_cache": True},
}


@settings(max_examples=12, deadline=None)
@given(data=st.data(), sizes=decoders(), border=st.sampled_from(list(BORDERS)))
def test_answers_and_states_are_those_of_whole_caches(folders, data, sizes, border):
    """Prompts and tokens in any order, at any position up to the last one, each in its own slot."""
    chunk = data.draw(st.integers(2, 9), "chunk")
    slots = data.draw(st.integers(2, 3), "slots") if sizes.slots else None
    seed = data.draw(st.integers(0, 9), "seed")
    rng = np.random.default_rng(seed)
    config = decoder_model.specializations(chunk, context=sizes.context, slots=slots)
    # Clients also request caches that are float16 at the interface.
    caches = [f"{name}{end}" for name in sizes.caches for end in ("", "_RetainedState")]
    half = {"custom_io_list_file": [{"IOName": name, "Precision": "float16"} for name in caches]}
    options = BORDERS[border] | (half if border == "float16" else {})
    whole, narrow, plan = both(decoder_model.decoder(sizes, seed), config, folders, **options)
    assert len(plan["state_rows"]["updates"]) == len(sizes.caches)
    assert all(update.get("reads_blocks") for update in plan["state_rows"]["updates"]) == ("MXINT8" in border)
    for client in (whole, narrow):
        client.chunk = chunk
    lengths = [0] * (slots or 1)

    def compare(tokens, positions, **more):
        answers = [client.step(tokens, positions, **more)["logits"] for client in (whole, narrow)]
        # Results of rows that contain only padding have no meaning.
        rows = np.atleast_2d(positions).max(axis=1) >= 0
        np.testing.assert_array_equal(*(answer[rows] for answer in answers))

    for _ in range(data.draw(st.integers(1, 6), "steps")):
        slot = data.draw(st.integers(0, len(lengths) - 1), "slot")
        more = {"batch_index": np.array([[slot]])} if slots else {}
        if data.draw(st.booleans(), "prompt"):
            count = data.draw(st.integers(1, chunk), "count")
            start = data.draw(st.integers(0, min(lengths[slot], sizes.context - count)), "start")
            tokens = rng.integers(0, sizes.vocabulary, (1, chunk))
            positions = np.full((1, chunk), -1)
            positions[0, :count] = np.arange(start, start + count)
            compare(tokens, positions, **more)
            lengths[slot] = start + count
            continue
        at = data.draw(st.sampled_from([lengths[slot], sizes.context - 1]), "position")
        at = min(at, sizes.context - 1)
        tokens = rng.integers(0, sizes.vocabulary, (slots or 1, 1))
        positions = np.full((slots or 1, 1), -1)
        positions[slot if slots else 0, 0] = at
        compare(tokens, positions, **({"batch_index": np.arange(slots)[:, None]} if slots else {}))
        lengths[slot] = at + 1 if at == lengths[slot] else lengths[slot]
    found, expected = (states(client, sizes, slots or 1) for client in (narrow, whole))
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("is_half", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_heads_that_share_a_cache_add_in_the_order_of_copies(folders, groups, is_half):
    """Regression: with one group, the engine combined all heads in one matrix, which changed the order of
    sums.
    """
    sizes = decoder_model.Sizes(layers=2, heads=6, groups=groups, width=16, context=128)
    config = decoder_model.specializations(8, context=sizes.context)
    caches = [f"{name}{end}" for name in sizes.caches for end in ("", "_RetainedState")]
    half = {"custom_io_list_file": [{"IOName": name, "Precision": "float16"} for name in caches]}
    options = {"convert_to_fp16": True, **half} if is_half else {}
    whole, narrow, _ = both(decoder_model.decoder(sizes), config, folders, **options)
    for position in range(70):
        answers = [client.step([[position % 23]], [[position]])["logits"] for client in (whole, narrow)]
        np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize("heads", [2, 4])
def test_a_scale_that_is_computed_of_sizes_stays_in_the_kernel(folders, heads):
    """GPT-2 divides scores by a root of the width of values, and the last digits of the logits differed."""
    sizes = decoder_model.Sizes(layers=2, heads=heads, width=16, context=128, computed_scale=True)
    config = decoder_model.specializations(8, context=sizes.context)
    whole, narrow, _ = both(decoder_model.decoder(sizes), config, folders)
    for position in range(70):
        answers = [client.step([[position % 23]], [[position]])["logits"] for client in (whole, narrow)]
        np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize("sets", ["token alone", "one batch", "one slot", "two batches"])
def test_a_scale_that_is_computed_stays_in_the_kernel_with_slots(folders, sets):
    """If all sets of shapes have one batch, whole caches are scaled in the product: a difference of 1e-6."""
    slots = 1 if sets == "one slot" else 3
    # A decoder whose logits differed in most steps.
    sizes = decoder_model.Sizes(
        layers=2, heads=3, groups=3, width=52, context=203, slots=True, computed_scale=True
    )
    config = decoder_model.specializations(4, context=sizes.context, slots=slots)
    if sets == "token alone":
        del config[0]
    elif sets == "one batch":
        config[0]["symbols"]["batch_size"] = str(slots)
    whole, narrow, _ = both(decoder_model.decoder(sizes), config, folders)
    rng = np.random.default_rng(0)
    for _ in range(25):
        tokens, positions = (rng.integers(0, limit, (slots, 1)) for limit in (23, sizes.context))
        places = rng.permutation(slots)[:, None]
        answers = [client.step(tokens, positions, batch_index=places)["logits"] for client in (whole, narrow)]
        np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize("is_whole", [False, True])
def test_padding_is_written_nowhere(folders, is_whole):
    """Padding after, before and between tokens changes no row of a state."""
    sizes = decoder_model.Sizes(context=128)
    config = decoder_model.specializations(8, context=sizes.context)
    path = compiled(
        decoder_model.decoder(sizes),
        config,
        next(folders),
        whole_caches=is_whole,
        split_retained_state_io=True,
    )
    with qaic.Session(path) as session:
        for name in sizes.caches:
            session.write_state(name, np.full(sizes.cache_shape(), 3, np.float32))
        positions = np.array([[-1, 5, -1, 6, 7, -1, 127, -1]])
        session.run({"input_ids": np.arange(8)[None], "position_ids": positions})
        for name in sizes.caches:
            assert {*np.flatnonzero((session.read_state(name) != 3).any(axis=(0, 1, 3)))} == {5, 6, 7, 127}
