"""Dataclasses with lazy ``__init__``; those of the standard library are the oracle."""

import copy
import dataclasses
import inspect
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qaic.support.dataclass import dataclass, field, fields, replace

NAMES = ("a", "b", "self_", "missing", "name")


@st.composite
def declarations(draw):
    """Return the members of a class and the options of its decorator, as both decorators accept them."""
    has_defaults = False
    members = {}
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1)):
        form = draw(
            st.sampled_from(
                ("default", "field", "factory") if has_defaults else ("none", "default", "factory")
            )
        )
        has_defaults |= form != "none"
        flags = {flag: draw(st.booleans()) for flag in ("repr", "compare")}
        members[name] = {
            "none": None,
            "default": {"default": draw(st.integers(0, 2)), **flags},
            "field": {"default": (), "init": draw(st.booleans()), **flags},
            "factory": {"default_factory": list, "init": draw(st.booleans()), **flags},
        }[form]
    options = {name: draw(st.booleans()) for name in ("eq", "frozen", "kw_only")}
    return members, options


def made(decorator, members, options):
    """Create a class."""
    body = {name: field(**given) for name, given in members.items() if given is not None}
    return decorator(**options)(
        type("Made", (), {"__annotations__": dict.fromkeys(members, object), "__doc__": "A class.", **body})
    )


def outcome(action):
    """Return the result of a call, or its error."""
    try:
        return action()
    except (TypeError, ValueError, AttributeError) as error:
        return type(error), str(error).replace("test_dataclass.", "")


def behavior(kind, members, values):
    """Return what users of a class can observe, as values that do not depend on the class."""
    observed = [[*inspect.signature(kind).parameters], kind.__match_args__]
    observed.append(outcome(lambda: vars(kind(*values))))
    arguments = {name: 1 for name, given in members.items() if given is None or given.get("init", True)}
    first = kind(**arguments)
    same = [kind(**arguments), copy.copy(first)]
    changed = [outcome(lambda name=name: replace(first, **{name: 9})) for name in (*members, "other")]
    others = [one if isinstance(one, kind) else None for one in changed]
    observed += [
        vars(first),
        dataclasses.asdict(first),
        [one for one in changed if not isinstance(one, kind)],
    ]
    observed.append([[hasattr(first, name) for name in members], repr(first)])
    if "__eq__" in vars(kind):
        observed.append([first == other for other in (*same, *others, object())])
        observed.append(outcome(lambda: [hash(first) == hash(other) for other in (*same, *others)]))
    observed.append(outcome(lambda: setattr(first, next(iter(members), "x"), 1)))
    return observed


@given(declarations(), st.lists(st.integers(0, 2), max_size=3))
def test_classes_behave_like_those_of_the_standard_library(declaration, values):
    ours, theirs = (
        behavior(made(one, *declaration), declaration[0], values)
        for one in (dataclass, dataclasses.dataclass)
    )
    assert ours == theirs


@dataclass(frozen=True)
class Base:
    """A class whose instances are pickled."""

    a: int
    b: "list[int]" = field(default_factory=list)


@dataclass(frozen=True)
class Derived(Base):
    """A class with a further field and another default."""

    b: "list[int]" = field(default_factory=lambda: [1])
    c: int = 3


def test_inherited_fields_keep_their_order():
    assert [one.name for one in fields(Derived)] == ["a", "b", "c"]
    assert Derived(5) == Derived(5, [1], 3) != Derived(5, [2])
    assert Base(5) != Derived(5, [])


def test_pickled_instances_are_equal():
    assert pickle.loads(pickle.dumps(Derived(5, [2]))) == Derived(5, [2])


def test_own_methods_are_kept():
    @dataclass
    class Made:
        a: int
        total: int = field(init=False)

        def __post_init__(self):
            self.total = self.a + 1

        def __repr__(self):
            return "made"

    assert Made(1).total == 2
    assert repr(Made(1)) == "made"


def test_frozen_instances_refuse_changes():
    one = Base(5)
    with pytest.raises(dataclasses.FrozenInstanceError, match="'a'"):
        one.a = 6
    with pytest.raises(dataclasses.FrozenInstanceError, match="'a'"):
        del one.a
    assert one.a == 5
