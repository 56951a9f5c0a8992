"""Groups of a graph: nested parts, and a limited number of boxes at a time."""

import base64
import json
import zlib
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from qaic.page.graph import Coloring, DrawnGraph, pack
from qaic.page.graph.groups import MOST_CHILDREN, grouped

PARTS = st.sampled_from(["", "a", "b", "layers.0", "layers.1", "MatMul"])
NAMES = st.one_of(st.lists(PARTS, max_size=5).map("/".join), st.text(max_size=6))


@given(st.lists(NAMES, max_size=300), st.booleans())
def test_groups_are_stretches_within_each_other(names, has_kinds):
    groups = grouped(names, [name[:1] for name in names] if has_kinds else [])
    for place, group in enumerate(groups):
        assert 0 <= group.first < group.end <= len(names)
        assert group.end - group.first >= 2
        assert group.label
        assert -1 <= group.parent < place
        if group.parent >= 0:
            around = groups[group.parent]
            assert around.first <= group.first
            assert group.end <= around.end
            assert (around.first, around.end) != (group.first, group.end)
    for parent in range(-1, len(groups)):
        inner = sorted((one.first, one.end) for one in groups if one.parent == parent)
        assert all(before[1] <= after[0] for before, after in pairwise(inner))


@given(st.lists(NAMES, min_size=1, max_size=40), st.integers(1, 60), st.booleans())
def test_an_open_group_shows_few_boxes(names, times, has_kinds):
    names = names * times
    groups = grouped(names, [name[:1] for name in names] if has_kinds else [])
    for parent in range(-1, len(groups)):
        first, end = (0, len(names)) if parent < 0 else (groups[parent].first, groups[parent].end)
        inner = [one for one in groups if one.parent == parent]
        boxes = end - first - sum(one.end - one.first - 1 for one in inner)
        assert boxes <= MOST_CHILDREN


@given(
    st.lists(st.sampled_from(["Conv", "Add", "Mul", "Relu"]), min_size=2, max_size=12),
    st.integers(4, 30),
)
@example(["Conv", "Conv", "Conv"], 28)
@example(["Conv"] * 12, 30)
def test_names_without_parts_are_grouped_by_repeated_operators(block, times):
    kinds = ["Resize", *block * times, "Softmax"]
    names = [f"{kind}.{place}" for place, kind in enumerate(kinds)]
    found = grouped(names, kinds)
    if len(kinds) <= MOST_CHILDREN:
        assert not found
        return
    labels = {one.label for one in found}
    assert any(label.startswith("block ") for label in labels)
    assert not any(label.startswith("nodes ") for label in labels)


def test_a_name_of_a_million_parts_is_no_tower_of_groups():
    names = ["/".join("x" * 1_000_000)] * 3
    assert len(grouped(names)) < 20


def test_nodes_of_one_part_lie_in_its_group():
    names = ["/m/l.0/a", "/m/l.0/b", "/m/l.1/a", "/m/l.1/b", "/m/l.1/c"]
    assert [(one.label, one.first, one.end, one.parent) for one in grouped(names)] == [
        ("l.0", 0, 2, -1),
        ("l.1", 2, 5, -1),
    ]


@given(st.lists(st.sampled_from(["bad", "good", "unknown", ""])), st.sets(st.sampled_from(["bad", "good"])))
def test_texts_without_a_given_color_are_last_in_the_legend(texts, given_colors):
    colors = dict.fromkeys(sorted(given_colors), "#000000")
    packed = pack([DrawnGraph([], [], [Coloring("error", texts, colors=colors)])])
    (held,) = json.loads(zlib.decompress(base64.b64decode(packed)))[0]["colorings"]
    assert [held["values"][code] for code in held["codes"]] == [text or "not known" for text in texts]
    known = [text in colors for text in held["values"]]
    assert known == sorted(known, reverse=True)
    assert [color == "#000000" for color in held["colors"]] == known
