"""The number of slots of a cache is the size of the dimension that is written at positions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from compiler_oracle import info, model_of, node
from qaic.compiler.passes.decoding.cache_slots import cache_slots

INT64 = TensorProto.INT64


def slots(nodes, dims):
    """Count the slots of caches in a graph with the inputs ``position_ids``, ``other`` and ``rows``."""
    inputs = [info("past", dims), *(info(name, [5], INT64) for name in ("position_ids", "other"))]
    graph = model_of(nodes, [*inputs, info("rows", dims)], [info("past_RetainedState", dims)]).graph
    return cache_slots(graph, {"past": dims, "position_ids": [5], "other": [5]}, "position_ids")


def views(source, count):
    """Change shapes and types, but no numbers."""
    kinds = [("Unsqueeze", {}), ("Cast", {"to": TensorProto.INT32}), ("Identity", {}), ("Expand", {})]
    nodes, name = [], source
    for at in range(count):
        kind, attributes = kinds[at % len(kinds)]
        nodes.append(node(kind, [name], [f"{source}/{at}"], **attributes))
        name = f"{source}/{at}"
    return nodes, name


@given(dims=st.lists(st.integers(1, 40), min_size=1, max_size=5), data=st.data(), count=st.integers(0, 6))
def test_scattered_rows(dims, data, count):
    axis = data.draw(st.integers(0, len(dims) - 1))
    before = data.draw(st.integers(0, len(dims) - 1 - axis))
    nodes, positions = views("position_ids", count)
    others, other = views("other", count)
    parts = [other] * axis + [positions] + [other] * before
    nodes += [
        *others,
        node("Concat", parts, ["places"], axis=-1),
        node("ScatterND", ["past", "places", "rows"], ["written"]),
        node("Cast", ["written"], ["past_RetainedState"], to=TensorProto.FLOAT),
    ]
    assert slots(nodes, dims) == {"past": dims[axis]}


@given(dims=st.lists(st.integers(1, 40), min_size=1, max_size=5), data=st.data())
def test_scattered_elements(dims, data):
    axis = data.draw(st.integers(-len(dims), len(dims) - 1))
    nodes, positions = views("position_ids", 3)
    nodes.append(node("ScatterElements", ["past", positions, "rows"], ["past_RetainedState"], axis=axis))
    assert slots(nodes, dims) == {"past": dims[axis]}


def test_rows_of_the_first_dimension():
    nodes = [
        node("Unsqueeze", ["position_ids"], ["places"]),
        node("ScatterND", ["past", "places", "rows"], ["past_RetainedState"]),
    ]
    assert slots(nodes, [7, 3]) == {"past": 7}


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Add", ["past", "rows"], ["past_RetainedState"])],
        [node("ScatterElements", ["past", "other", "rows"], ["past_RetainedState"])],
        [
            node("Shape", ["position_ids"], ["count"]),
            node("ScatterElements", ["past", "count", "rows"], ["past_RetainedState"]),
        ],
        [
            node("Mod", ["position_ids", "other"], ["in_window"]),
            node("ScatterElements", ["past", "in_window", "rows"], ["past_RetainedState"]),
        ],
        [
            node("Concat", ["position_ids", "position_ids"], ["places"], axis=-1),
            node("ScatterND", ["past", "places", "rows"], ["past_RetainedState"]),
        ],
        [],
    ],
    ids=["no rows", "other places", "sizes of positions", "a window", "two dimensions", "not computed"],
)
def test_what_says_nothing(nodes):
    assert slots(nodes, [4, 6]) == {}
