"""State that is written row by row: what is there after inferences, and after failures."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import qaic
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


@pytest.mark.virtual_card("a card's cores that fail take the whole program with them")
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
