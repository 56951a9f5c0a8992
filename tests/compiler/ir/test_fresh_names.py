"""New names for values: the first free name, found in linear time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from qaic.compiler.calibration import glow_profile
from qaic.compiler.ir.graph_walk import FreshNames

MANY = 1000
STEMS = st.sampled_from(["a", "a_1", "a_2", "b"])


def graph_of(names):
    nodes = [helper.make_node("Relu", ["x"], [name], name="same") for name in names]
    x = helper.make_tensor_value_info("x", 1, [1])
    return helper.make_graph(nodes, "g", [x], [])


@given(st.sets(st.builds("{}/s{}".format, STEMS, st.sampled_from(["", "_1", "_2", "_3"]))), st.lists(STEMS))
def test_every_name_is_the_first_free_one(present, bases):
    names, taken = FreshNames(graph_of(sorted(present))), {"x", *present}
    for base in bases:
        numbered = (f"{base}/s_{number}" if number else f"{base}/s" for number in range(100))
        free = next(name for name in numbered if name not in taken)
        assert names.make(base, "s") == free
        taken.add(free)


class Counted:
    """Counts the look-ups of names."""

    lookups = 0

    def __contains__(self, name):
        type(self).lookups += 1
        return super().__contains__(name)


class CountedSet(Counted, set):
    pass


class CountedDict(Counted, dict):
    pass


@pytest.mark.parametrize("kind", ["fresh", "profile"])
def test_equal_names_are_told_apart_in_linear_time(kind):
    if kind == "fresh":
        names = FreshNames(graph_of([]))
        names._taken = taken = CountedSet(names._taken)
        made = [names.make("same", "cast") for _ in range(MANY)]
    else:
        taken = CountedDict()
        made = [glow_profile._unique("same", taken) for _ in range(MANY)]
    assert len(set(made)) == MANY
    assert type(taken).lookups <= 3 * MANY
