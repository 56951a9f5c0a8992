"""State that is written row by row: its contents after inferences, and after failures."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import qaic
from child_process import run_script
from compiler_oracle import info, model_of, node
from session_models import save
from state_row_models import STATE, writer


def session(folder, model, **options):
    return qaic.Session(save(folder, model), retained_state=True, split_retained_state_io=True, **options)


def updates(opened):
    return len(opened.qpc.plan.get("state_rows", {}).get("updates", ()))


@pytest.mark.parametrize("elem_type", [TensorProto.FLOAT, TensorProto.INT32])
@pytest.mark.parametrize("is_whole", [False, True])
def test_rows_are_written_over_the_state(tmp_path, elem_type, is_whole):
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    rng = np.random.default_rng(0)
    state = np.zeros(STATE, dtype)
    with session(tmp_path, writer(elem_type=elem_type), whole_caches=is_whole) as opened:
        assert updates(opened) == (0 if is_whole else 1)
        for _ in range(4):
            # Negative indices count from the end.
            at = np.stack([rng.integers(-2, 2, 4), rng.integers(-5, 5, 4)], axis=1)
            at = at[np.unique(at % [2, 5], axis=0, return_index=True)[1]]
            at = np.concatenate([at, np.repeat(at[:1], 4 - len(at), axis=0)])
            rows = rng.integers(0, 99, (4, 3)).astype(dtype)
            rows[(at == at[0]).all(axis=1)] = rows[0]
            found = opened.run({"at": at, "rows": rows})
            assert found["total"] == state.sum()
            state[tuple(at.T)] = -rows
            np.testing.assert_array_equal(opened.read_state("past"), state)


@pytest.mark.virtual_card("failed cores of a card end the whole program")
def test_an_inference_that_fails_leaves_the_state(tmp_path):
    rows = np.ones((4, 3), np.float32)
    inside, outside = np.zeros((4, 2), np.int64), np.array([[0, 0], [1, 1], [2, 0], [0, 0]])
    with session(tmp_path, writer()) as opened:
        assert updates(opened) == 1
        opened.run({"at": inside, "rows": rows})
        before = opened.read_state("past")
        with pytest.raises(qaic.errors.QaicError, match="outside"):
            opened.run({"at": outside, "rows": 2 * rows})
        np.testing.assert_array_equal(opened.read_state("past"), before)
        opened.run({"at": inside, "rows": 3 * rows})
        np.testing.assert_array_equal(opened.read_state("past")[0, 0], [-3, -3, -3])


def test_a_value_that_the_caller_gives_becomes_the_state_with_the_rows(tmp_path):
    rng = np.random.default_rng(0)
    given = rng.standard_normal(STATE).astype(np.float32)
    rows = np.ones((4, 3), np.float32)
    at = np.array([[0, 0], [0, 1], [1, 2], [1, 4]])
    expected = given.copy()
    expected[tuple(at.T)] = -1
    with session(tmp_path, writer()) as opened:
        opened.run({"past": given, "at": at, "rows": rows})
        np.testing.assert_array_equal(opened.read_state("past"), expected)
        opened.write_state("past", given)
        opened.run({"at": at, "rows": 2 * rows})
        expected[tuple(at.T)] = -2
        np.testing.assert_array_equal(opened.read_state("past"), expected)


def two_states():
    """A model that writes rows of two states; each state has a separate input for the positions."""
    nodes, inputs, outputs = [], [info("rows", [4, 3], TensorProto.FLOAT)], []
    for name in ("first", "second"):
        nodes += [
            node("Identity", [f"at_{name}"], [f"places_{name}"]),
            node("Neg", ["rows"], [f"written_{name}"]),
            node("ScatterND", [name, f"places_{name}", f"written_{name}"], [f"{name}_RetainedState"]),
        ]
        inputs += [info(name, STATE, TensorProto.FLOAT), info(f"at_{name}", [4, 2], TensorProto.INT64)]
        outputs.append(info(f"{name}_RetainedState", STATE, TensorProto.FLOAT))
    nodes.append(node("ReduceSum", ["rows"], ["total"], keepdims=0))
    return model_of(nodes, inputs, [*outputs, info("total", [], TensorProto.FLOAT)])


@pytest.mark.virtual_card("failed cores of a card end the whole program")
@pytest.mark.parametrize("wrong", ["first", "second"])
def test_a_row_outside_of_one_state_leaves_all_of_them(tmp_path, wrong):
    """All indices are checked before the first row is written."""
    rng = np.random.default_rng(0)
    at = {f"at_{name}": np.array([[0, 0], [0, 3], [1, 1], [1, 4]]) for name in ("first", "second")}
    rows = np.ones((4, 3), np.float32)
    with session(tmp_path, two_states()) as opened:
        assert updates(opened) == 2
        for name in ("first", "second"):
            opened.write_state(name, rng.standard_normal(STATE).astype(np.float32))
        opened.run({**at, "rows": rows})
        before = {name: opened.read_state(name) for name in ("first", "second")}
        outside = {f"at_{wrong}": np.array([[0, 0], [0, 3], [1, 1], [1, 5]])}
        with pytest.raises(qaic.errors.QaicError, match=rf"`{wrong}_RetainedState`: .* outside"):
            opened.run({**at, **outside, "rows": 2 * rows})
        for name, state in before.items():
            np.testing.assert_array_equal(opened.read_state(name), state)


_RESIDENT = """
import sys
import tempfile
from pathlib import Path

import numpy as np

import decoder_model
import qaic
from qaic.compiler.driver import compile_model
from qaic.options import resolve

is_whole = sys.argv[1] == "True"
sizes = decoder_model.Sizes(layers=2, width=64, context=int(sys.argv[2]))
given = {
    "network_specialization_config": decoder_model.specializations(8, context=sizes.context),
    "retained_state": True,
    "split_retained_state_io": True,
    "whole_caches": is_whole,
    "aic_num_cores": 1,
}
found = resolve(given, options_path=None, model_is_container=False)
path = compile_model(
    decoder_model.decoder(sizes), found.compile, found.set_compile, output_dir=Path(tempfile.mkdtemp(), "qpc")
)


def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))) * 1024


ones = np.ones(sizes.cache_shape(), np.float32)
before = resident()
with qaic.Session(path, num_activations=1, set_size=1) as session:
    for position in range(4):
        session.run({"input_ids": np.array([[1]]), "position_ids": np.array([[position]])})
    for name in sizes.caches:
        session.write_state(name, ones)
    for position in range(4):
        session.run({"input_ids": np.array([[1]]), "position_ids": np.array([[position]])})
    print(resident() - before, len(sizes.caches) * np.prod(sizes.cache_shape()) * 4)
"""


def resident_and_states(*, is_whole, context):
    """Return the memory of a process after a run of a decoder, and the part of its states, both in bytes."""
    return np.array([*map(int, run_script(_RESIDENT, is_whole, context, device="cpu").stdout.split())])


@pytest.mark.virtual_card("an emulated card uses memory of the same process")
def test_a_state_has_one_buffer():
    """In addition to the states, memory contains attended parts, the engine, and buffers for written rows."""
    held, states = resident_and_states(is_whole=False, context=32768)
    assert held < 1.8 * states
    # If caches are written completely, each has a next value, and the engine copies caches.
    whole, _ = resident_and_states(is_whole=True, context=32768)
    assert whole > 3 * states
    # With half the context, memory decreases by half of the states; with two buffers, by all of them. Other
    # memory of a process varies by some MB.
    held, states = np.array([held, states]) - resident_and_states(is_whole=False, context=16384)
    assert 0.5 < held / states < 1.5
