"""A run uses a sample of a sweep, or the whole sweep."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sampling
from guide_blocks import ROOT

SAMPLED = ROOT / "tests" / "rt" / "test_any.py"


def config(*args, is_whole=False):
    left_out = []
    hook = SimpleNamespace(pytest_deselected=lambda *, items: left_out.extend(items))
    place = SimpleNamespace(dir=ROOT / "tests")
    return SimpleNamespace(
        getoption=lambda _: is_whole, hook=hook, left_out=left_out, args=args, invocation_params=place
    )


@dataclass(eq=False)
class Item:
    obj: object = None
    marks: tuple = ()
    path: Path = SAMPLED
    config: object = field(default_factory=config)

    def get_closest_marker(self, name):
        return name in self.marks or None


def drawing(asked):
    """Create a property, and the list of its examples."""
    drawn = []

    @settings(max_examples=asked)
    @given(st.integers(0, 10**9))
    def test(number):
        drawn.append(number)

    return test, drawn


@pytest.mark.parametrize(("asked", "taken"), [(100, 40), (12, 5), (3, 2), (1, 1)])
def test_a_property_with_several_cases_draws_two_of_five_examples(asked, taken):
    (whole, all_drawn), (test, drawn) = drawing(asked), drawing(asked)
    sampling.take_samples(config(), [Item(test), Item(test)])
    whole()
    test()
    assert len(all_drawn) == asked
    assert len(drawn) == taken


def test_marked_cases_are_left_out():
    kept, left = Item(), Item(marks=("whole",))
    items, run = [kept, left], config()
    sampling.take_samples(run, items)
    assert items == [kept]
    assert run.left_out == [left]


@pytest.mark.parametrize(
    "whole",
    [
        Item(config=config(is_whole=True)),
        Item(config=config("rt/test_any.py::test[a::b]")),
        Item(config=config("../tests/rt/test_any.py::test", "options")),
        Item(config=config(f"{SAMPLED}::test")),
        Item(marks=("whole", "run_profiles")),
        Item(path=ROOT / "tests" / "page" / "test_any.py"),
        Item(path=ROOT / "tests" / "property" / "test_kmd_any.py"),
    ],
)
def test_what_is_named_or_runs_in_no_whole_stage_runs_whole(whole):
    assert not sampling.is_sampled(whole)
    for args in [(), ("rt/test_any.py",), ("rt/test_other.py::test",)]:
        assert sampling.is_sampled(Item(config=config(*args)))


def test_sampled_files_are_those_that_a_whole_stage_collects(tmp_path):
    assert re.search("^stage test-pins$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    asked = ["make", "-n", "-o", ".venv-pins/.installed", "test-pins"]
    # An outer make would pass its flags, and its messages would be among the words.
    own = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    }
    printed = subprocess.run(asked, cwd=ROOT, env=own, capture_output=True, text=True, check=True).stdout
    words = shlex.split(printed)
    files = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("def test(): pass")
    (tmp_path / "pytest.ini").touch()
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--import-mode=importlib"]
    words = words[words.index("--whole") + 1 :]
    done = subprocess.run([*collect, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
    collected = {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}
    assert len(collected) > 100
    assert collected == {str(file) for file in files if sampling.is_in_whole_stage(ROOT / file)}
