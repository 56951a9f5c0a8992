"""Sources of the ranges of values."""

from pathlib import Path

import pytest

import golden_programs
from compiler_oracle import info, model_of, node
from qaic.errors import OptionError
from single_pass import applied, before, content

NAME = "calibrate"


def relu():
    nodes = [node("Relu", ["x"], ["a"]), node("Add", ["a", "x"], ["y"])]
    return model_of(nodes, [info("x", [2, 3])], [info("y", [2, 3])])


def test_profile_of_a_file_has_an_entry_for_each_value(tmp_path):
    options = golden_programs.ranges(relu(), tmp_path)
    model, context = before(NAME, relu(), **options)
    found = content(model)
    assert not applied(NAME, model, context)
    first = context.profile
    assert set(first.tensors) == {"x", "a", "y"}
    assert not applied(NAME, model, context)
    assert context.profile.tensors.keys() == first.tensors.keys()
    assert content(model) == found


def test_profile_of_another_model_is_refused(tmp_path):
    options = golden_programs.ranges(relu(), tmp_path)
    options["allow_profile_mismatch"] = False
    path = Path(options["load_profile"])
    path.write_text(path.read_text().replace("'2021'", "'openqaic 0'"))
    model, context = before(NAME, relu(), **options)
    with pytest.raises(OptionError, match="belongs to another model or to other shapes"):
        applied(NAME, model, context)


def test_profile_that_changed_since_it_was_named_is_refused(tmp_path):
    options = golden_programs.ranges(relu(), tmp_path)
    model, context = before(NAME, relu(), **options)
    context.options.load_profile.path.write_text("other")
    with pytest.raises(OptionError, match="has changed since the options"):
        applied(NAME, model, context)


def test_floats_are_not_measured():
    _, context = before(NAME, relu())
    for name in ("calibrate", "dump-profile"):
        with pytest.raises(AssertionError):
            applied(name, *before(NAME, relu()))
    assert context.profile is None
