"""The compiler writes the same containers as before, part by part.

After a change that is meant to change bytes, this command writes the digests again; the commit states the
changed parts and the reason:

    python tests/compiler/test_golden.py
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

if __name__ == "__main__":
    _tests = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(_tests), str(_tests / "models"), str(_tests / "oracles")]

import golden_programs
from golden_programs import GOLDEN, PROGRAMS, TESTS

VERSIONS = GOLDEN / "versions.json"


def stored(name: str) -> dict[str, str]:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def test_every_program_has_digests():
    assert {path.stem for path in GOLDEN.glob("*.json")} == {*PROGRAMS, VERSIONS.stem}


def test_the_pinned_versions_are_those_of_the_digests():
    groups = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["dependency-groups"]
    assert dict(pin.split("==") for pin in groups["golden"]) == json.loads(VERSIONS.read_text())


# The test fails instead of skipping: otherwise, wrong digests could remain unnoticed.
@pytest.fixture(scope="module", autouse=True)
def _pinned_versions():
    installed, pinned = golden_programs.versions(), json.loads(VERSIONS.read_text())
    if installed != pinned:
        pytest.fail(f"the digests are of {pinned}, found {installed}; run pip install --group golden")


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_is_what_it_was(name, tmp_path, monkeypatch):
    if name.startswith("magika"):
        pytest.importorskip("magika", reason="a model of the extra `demo`")
    monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "files"
    folder.mkdir()
    assert golden_programs.digests(name, folder) == stored(name)


def write_digests(names: list[str]) -> None:
    """Write the digests of the programs of this tree."""
    GOLDEN.mkdir(exist_ok=True)
    VERSIONS.write_text(json.dumps(golden_programs.versions(), indent=1) + "\n")
    for name in names or PROGRAMS:
        with tempfile.TemporaryDirectory() as place:
            os.environ["QAIC_CACHE_DIR"] = str(Path(place, "cache"))
            folder = Path(place, "files")
            folder.mkdir()
            found = golden_programs.digests(name, folder)
        (GOLDEN / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    write_digests(sys.argv[1:])
