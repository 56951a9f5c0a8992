"""A run takes a sample of a sweep, or the whole."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sampling


def config(is_whole=False):
    left_out = []
    hook = SimpleNamespace(pytest_deselected=lambda *, items: left_out.extend(items))
    return SimpleNamespace(getoption=lambda _: is_whole, hook=hook, left_out=left_out)


def item(test, *marks):
    return SimpleNamespace(obj=test, get_closest_marker=lambda name: name in marks or None)


def drawing(asked):
    """Make a property, and the list of what it draws."""
    drawn = []

    @settings(max_examples=asked)
    @given(st.integers(0, 10**9))
    def test(number):
        drawn.append(number)

    return test, drawn


@pytest.mark.parametrize(("asked", "taken"), [(100, 40), (12, 5), (3, 2), (1, 1)])
def test_a_property_with_several_cases_draws_two_of_five_examples(asked, taken):
    (whole, all_drawn), (test, drawn) = drawing(asked), drawing(asked)
    sampling.take_samples(config(), [item(test), item(test)])
    whole()
    test()
    assert len(all_drawn) == asked
    assert len(drawn) == taken


def test_marked_cases_are_left_out():
    kept, left = item(lambda: None), item(lambda: None, "whole")
    items, run = [kept, left], config()
    sampling.take_samples(run, items)
    assert items == [kept]
    assert run.left_out == [left]


def test_whole_runs():
    assert sampling.is_whole(config(is_whole=True))
    assert sampling.is_whole(config()) is not settings.default.derandomize
