"""Small models that write rows of a state."""

from __future__ import annotations

from onnx import TensorProto

from compiler_oracle import info, model_of, node

STATE = [2, 5, 3]


def writer(*more, outputs=(), elem_type=TensorProto.FLOAT):
    """A model that writes rows of its state at positions from an input."""
    return model_of(
        [
            node("Identity", ["at"], ["places"]),
            node("Neg", ["rows"], ["written"]),
            node("ScatterND", ["past", "places", "written"], ["past_RetainedState"]),
            node("ReduceSum", ["past"], ["total"], keepdims=0),
            *more,
        ],
        [
            info("past", STATE, elem_type),
            info("at", [4, 2], TensorProto.INT64),
            info("rows", [4, 3], elem_type),
        ],
        [info("past_RetainedState", STATE, elem_type), info("total", [], elem_type), *outputs],
    )
