"""A decoder gives the same results whether or not its caches are kept in place.

The tests compare each use bit by bit with `whole_caches`: prompts and tokens in any order, several slots in
one inference, states that are read, written and passed to another program, compute lengths, blocks, and
inferences that fail or are cancelled.
"""

from __future__ import annotations

import contextlib
import functools
import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decoder_model
import qaic
from decoder_client import compiled

#: Storage of caches -> its options. Caches in float16 are float32 at the interface, except in one form.
FORMS = {
    "float32": {},
    "float16 border": {"convert_to_fp16": True},
    "float16": {"convert_to_fp16": True},
    "mxint8": {"mxint8_kv_cache": True},
    "mxint8 of float16": {"convert_to_fp16": True, "mxint8_kv_cache": True},
}


#: Number of programs in the default profile. Several examples share a program, because compiling takes most
#: of the time. The profile `explore` uses other programs each time.
PROGRAMS = 8 if settings.default.derandomize else 1 << 32


@dataclass(frozen=True)
class Setup:
    """A decoder, its compile options, and the number of slots of its caches, None without `batch_index`."""

    sizes: decoder_model.Sizes
    form: str
    chunk: int
    slots: int
    lengths: tuple[int, ...] = ()

    @property
    def config(self):
        return decoder_model.specializations(
            self.chunk,
            context=self.sizes.context,
            slots=self.slots if self.sizes.slots else None,
            compute_lengths=self.lengths or None,
        )


def setup_of(number, *, compute_lengths=False):
    """Create the setup with a number; small numbers create every form of caches, with and without slots."""
    rng = random.Random(number)
    groups = rng.randint(1, 2)
    sizes = decoder_model.Sizes(
        layers=rng.randint(1, 2),
        heads=groups * rng.randint(1, 3),
        groups=groups,
        width=2 * rng.randint(1, 8),
        vocabulary=23,
        context=rng.choice([rng.randint(16, 24), rng.randint(100, 200)]),
        window=rng.choice([None, rng.randint(1, 8)]),
        slots=number % 2 == 0,
        computed_scale=rng.random() < 0.5,
        compute_lengths=compute_lengths,
    )
    lengths = rng.sample(range(10, sizes.context + 1), rng.randint(2, 3)) if compute_lengths else ()
    forms = ["float32", "float16 border", "mxint8"] if compute_lengths else sorted(FORMS)
    slots = rng.randint(2, 4) if sizes.slots else 1
    return Setup(sizes, forms[number % len(forms)], rng.randint(2, 9), slots, tuple(lengths))


SETUPS = st.integers(0, PROGRAMS - 1).map(setup_of)
WITH_LENGTHS = st.integers(0, PROGRAMS // 2 - 1).map(functools.partial(setup_of, compute_lengths=True))


def options_of(form, sizes):
    """Compile options for a storage of caches."""
    options = FORMS[form]
    if form == "float16 border":
        names = [f"{name}{end}" for name in sizes.caches for end in ("", "_RetainedState")]
        options = {
            **options,
            "custom_io_list_file": [{"IOName": name, "Precision": "float16"} for name in names],
        }
    return options


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Compile a setup with whole caches and with caches in place, once."""

    @functools.cache
    def compiled_once(setup):
        sizes = setup.sizes
        # If lengths are selected, the graph reads the next value of a cache, so it computes this value.
        is_in_place = not sizes.compute_lengths
        model = decoder_model.decoder(sizes)
        kept = {"split_retained_state_io": True, **options_of(setup.form, sizes)}
        folder = tmp_path_factory.mktemp("decoder")
        found = [
            compiled(model, setup.config, folder / str(is_whole), whole_caches=is_whole, **kept)
            for is_whole in (True, False)
        ]
        plans = [qaic.Qpc(path).plan for path in found]
        assert "state_rows" not in plans[0]
        updates = plans[1].get("state_rows", {}).get("updates", ())
        assert len(updates) == (len(sizes.caches) if is_in_place else 0)
        return found

    return compiled_once


@contextlib.contextmanager
def both(found, sessions=1):
    """Sessions of a program with whole caches, and of a program with caches in place."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(qaic.Session(path)) for path in found for _ in range(sessions)]


def states(session, sizes):
    return {name: session.read_state(name) for name in sizes.caches}


def write(session, kept):
    for name, array in kept.items():
        session.write_state(name, array)


def assert_equal_states(found, expected):
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def prompt(rng, sizes, chunk, start, count, slot=None):
    """Tokens of a prompt at consecutive positions, padded at the end."""
    feed = {
        "input_ids": rng.integers(0, sizes.vocabulary, (1, chunk)),
        "position_ids": np.full((1, chunk), -1),
    }
    feed["position_ids"][0, :count] = np.arange(start, start + count)
    return feed | ({} if slot is None else {"batch_index": np.array([[slot]])})


def tokens(rng, sizes, positions):
    """A token for each slot, in any order of the slots; slots at position -1 are unused."""
    feed = {
        "input_ids": rng.integers(0, sizes.vocabulary, (len(positions), 1)),
        "position_ids": np.asarray(positions).reshape(-1, 1),
    }
    if not sizes.slots:
        return feed
    order = rng.permutation(len(positions))
    return {name: array[order] for name, array in feed.items()} | {"batch_index": order[:, None]}


def assert_equal_answers(sessions, feed):
    """Run one inference in each session. Results of rows that contain only padding have no meaning."""
    answers = [session.run(feed)["logits"] for session in sessions]
    rows = feed["position_ids"].max(axis=1) >= 0
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer[rows], answers[0][rows])
    return answers[0]


def draw_feed(data, rng, sizes, chunk, slots):
    """Draw a chunk of a prompt, or a token for each slot, at any positions."""
    if data.draw(st.booleans(), "is prompt"):
        count = data.draw(st.integers(1, chunk), "count")
        start = data.draw(st.integers(0, sizes.context - count), "start")
        slot = data.draw(st.integers(0, slots - 1), "slot") if sizes.slots else None
        return prompt(rng, sizes, chunk, start, count, slot)
    positions = st.lists(st.integers(-1, sizes.context - 1), min_size=slots, max_size=slots)
    return tokens(rng, sizes, data.draw(positions, "positions"))


@settings(max_examples=10, deadline=None)
@given(data=st.data(), setup=SETUPS)
def test_any_order_of_prompts_tokens_reads_and_writes(paths, data, setup):
    """Every slot has its own position. States are read and written back, as a whole or for one sequence."""
    sizes, chunk, slots = setup.sizes, setup.chunk, setup.slots
    rng = np.random.default_rng(data.draw(st.integers(0, 9), "seed"))
    with both(paths(setup)) as sessions:
        kept = [states(sessions[0], sizes)]
        actions = st.sampled_from(["run", "run", "run", "keep", "write", "write one", "reset"])
        for action in data.draw(st.lists(actions, min_size=3, max_size=10), "actions"):
            if action == "run":
                assert_equal_answers(sessions, draw_feed(data, rng, sizes, chunk, slots))
            elif action == "keep":
                found, expected = (states(session, sizes) for session in reversed(sessions))
                assert_equal_states(found, expected)
                kept.append(found)
            elif action == "reset":
                for session in sessions:
                    session.reset()
            else:
                chosen = data.draw(st.sampled_from(kept), "kept")
                # One sequence is copied to another slot.
                places = data.draw(st.tuples(*[st.integers(0, slots - 1)] * 2), "places")
                for session in sessions:
                    if action == "write":
                        write(session, chosen)
                        continue
                    for name, array in chosen.items():
                        session.write_state(name, array[places[0]], sequence=places[1])
        assert_equal_states(*(states(session, sizes) for session in reversed(sessions)))


@settings(max_examples=8, deadline=None)
@given(data=st.data(), setup=SETUPS)
def test_a_prefix_that_is_handed_over_continues_as_if_it_had_been_read(paths, data, setup):
    """A program with whole caches continues with the state of a program with caches in place, and the
    reverse.
    """
    sizes, chunk, slots = setup.sizes, setup.chunk, setup.slots
    rng = np.random.default_rng(data.draw(st.integers(0, 9), "seed"))
    slot = data.draw(st.integers(0, slots - 1), "slot") if sizes.slots else None
    length = data.draw(st.integers(1, sizes.context - 4), "length")
    with both(paths(setup), sessions=2) as sessions:
        whole, other_whole, narrow, other_narrow = sessions
        for start in range(0, length, chunk):
            feed = prompt(rng, sizes, chunk, start, min(chunk, length - start), slot)
            assert_equal_answers([whole, narrow], feed)
        # The caches of the other program contain other values, which are overwritten.
        assert_equal_answers([other_whole, other_narrow], prompt(rng, sizes, chunk, 0, 2, slot))
        write(other_whole, states(narrow, sizes))
        write(other_narrow, states(whole, sizes))
        for position in range(length, length + 3):
            assert_equal_answers(sessions, tokens(rng, sizes, [position] * slots))
        expected = states(whole, sizes)
        for session in sessions[1:]:
            assert_equal_states(states(session, sizes), expected)


@settings(max_examples=8, deadline=None)
@given(data=st.data(), setup=WITH_LENGTHS)
def test_compute_lengths_share_the_state(paths, data, setup):
    """Each inference selects the number of slots that it reads; all inferences write one cache."""
    sizes, chunk, slots = setup.sizes, setup.chunk, setup.slots
    rng = np.random.default_rng(data.draw(st.integers(0, 9), "seed"))
    with both(paths(setup)) as sessions:
        for length in data.draw(st.lists(st.sampled_from(setup.lengths), min_size=2, max_size=6), "steps"):
            if data.draw(st.booleans(), "is prompt"):
                count = data.draw(st.integers(1, chunk), "count")
                start = data.draw(st.integers(0, length - count), "start")
                slot = data.draw(st.integers(0, slots - 1), "slot") if sizes.slots else None
                feed = prompt(rng, sizes, chunk, start, count, slot)
            else:
                positions = st.lists(st.integers(0, length - 1), min_size=slots, max_size=slots)
                feed = tokens(rng, sizes, data.draw(positions, "positions"))
            assert_equal_answers(sessions, feed | {"comp_ctx_lengths": np.zeros(length, np.int8)})
        assert_equal_states(*(states(session, sizes) for session in reversed(sessions)))


@pytest.mark.virtual_card("failed cores of a card end the whole program")
@settings(max_examples=8, deadline=None)
@given(data=st.data(), setup=SETUPS)
def test_inferences_that_fail_leave_every_cache(paths, data, setup):
    """A token outside the vocabulary, among others and in any slot, makes the engine end the inference."""
    sizes, chunk, slots = setup.sizes, setup.chunk, setup.slots
    rng = np.random.default_rng(data.draw(st.integers(0, 9), "seed"))
    with both(paths(setup)) as sessions:
        for is_failing in data.draw(st.lists(st.booleans(), min_size=2, max_size=6), "failing"):
            feed = draw_feed(data, rng, sizes, chunk, slots)
            if not is_failing:
                assert_equal_answers(sessions, feed)
                continue
            place = tuple(
                data.draw(st.integers(0, size - 1), "place") for size in np.shape(feed["input_ids"])
            )
            feed["input_ids"][place] = sizes.vocabulary
            for session in sessions:
                before = states(session, sizes)
                with pytest.raises(qaic.errors.QaicError, match="out of data bounds"):
                    session.run(feed)
                assert_equal_states(states(session, sizes), before)
        assert_equal_states(*(states(session, sizes) for session in reversed(sessions)))


@pytest.mark.virtual_card("a card completes an inference that it has accepted, even if nothing waits for it")
@pytest.mark.parametrize("form", ["float32", "float16 border"])
def test_inferences_that_are_ended_leave_every_cache(paths, form):
    """Limits that increase end the same chunk at different steps, until a limit is long enough."""
    sizes = decoder_model.Sizes(layers=2, heads=8, groups=4, width=64, context=1024)
    setup = Setup(sizes, form, chunk=512, slots=1)
    rng = np.random.default_rng(0)
    first, second = prompt(rng, sizes, 512, 0, 512), prompt(rng, sizes, 512, 512, 512)
    with both(paths(setup)) as sessions:
        assert_equal_answers(sessions, first)
        answers = []
        for session in sessions:
            before = states(session, sizes)
            timeout, ended = 1e-4, 0
            while len(answers) == sessions.index(session):
                try:
                    answers.append(session.run(second, timeout=timeout)["logits"])
                except qaic.errors.DeviceTimeoutError:
                    assert_equal_states(states(session, sizes), before)
                    timeout, ended = 2 * timeout, ended + 1
            assert ended
        np.testing.assert_array_equal(*answers)
        assert_equal_states(*(states(session, sizes) for session in reversed(sessions)))
        assert_equal_answers(sessions, tokens(rng, sizes, [1023]))
