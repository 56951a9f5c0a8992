"""States of which only some rows are computed, and their description in the plan."""

from __future__ import annotations

import pytest
from onnx import TensorProto

import qaic
from compiler_oracle import info, model_of, node
from session_models import save
from single_pass import before, skipped
from state_row_models import STATE, writer


def planned(folder, model, **options):
    """Compile; return the entry of the plan about rows, or None."""
    path = qaic.compile(save(folder, model), retained_state=True, **options)
    return qaic.Qpc(path).plan.get("state_rows")


def test_the_plan_tells_rows_and_indices(tmp_path):
    rows = planned(tmp_path, writer())
    assert [(tensor["dtype"], tensor["dims"]) for tensor in rows["tensors"]] == [
        ("float32", [[4, 3]]),
        ("int64", [[4, 2]]),
    ]
    assert rows["updates"] == [{"input": 0, "output": 0, "rows": 0, "indices": 1}]


HALF, WIDE = TensorProto.FLOAT16, TensorProto.FLOAT


@pytest.mark.parametrize(
    ("stored", "entering", "leaving", "is_kept"),
    [
        (HALF, [WIDE], [HALF], True),
        (WIDE, [HALF], [WIDE], True),
        (WIDE, [HALF, WIDE], [HALF, WIDE], True),
        # Rows that no node writes would be rounded only in the output.
        (WIDE, [WIDE], [HALF, WIDE], False),
    ],
)
def test_casts_of_what_is_read_apply_to_rows(tmp_path, stored, entering, leaving, is_kept):
    def casts(name, targets, last):
        names = [name, *(f"{name}/{at}" for at in range(len(targets) - 1)), last]
        pairs = zip(names, names[1:], targets, strict=False)
        return [node("Cast", [source], [result], to=target) for source, result, target in pairs]

    model = model_of(
        [
            *casts("past", entering, "entering"),
            node("Identity", ["at"], ["places"]),
            node("Neg", ["rows"], ["written"]),
            node("ScatterND", ["entering", "places", "written"], ["next"]),
            *casts("next", leaving, "past_RetainedState"),
        ],
        [
            info("past", STATE, stored),
            info("at", [4, 2], TensorProto.INT64),
            info("rows", [4, 3], entering[-1]),
        ],
        [info("past_RetainedState", STATE, stored)],
    )
    rows = planned(tmp_path, model)
    assert (rows is not None) == is_kept
    assert rows is None or rows["tensors"][0]["dtype"] == {HALF: "float16", WIDE: "float32"}[stored]


def test_whole_caches_are_asked_for(tmp_path):
    assert planned(tmp_path, writer(), whole_caches=True) is None


@pytest.mark.parametrize(
    ("more", "outputs"),
    [
        (
            [node("ReduceMax", ["past_RetainedState"], ["top"], keepdims=0)],
            [info("top", [], TensorProto.FLOAT)],
        ),
        ([node("Neg", ["past_RetainedState"], ["other"])], [info("other", STATE, TensorProto.FLOAT)]),
    ],
)
def test_state_whose_next_value_is_read_is_computed_whole(tmp_path, more, outputs):
    assert planned(tmp_path, writer(*more, outputs=outputs)) is None


def test_the_reason_for_state_that_is_moved_whole_is_reported():
    model = writer(node("Neg", ["past_RetainedState"], ["other"]), outputs=[info("other", STATE)])
    name = "take-out-state-rows"
    (line,) = skipped(name, *before(name, model, retained_state=True))
    assert line.endswith(": the whole state is copied: no scatter of rows computes only its next value")
