"""The compiler writes the containers that it wrote before, part by part.

A change that is meant to move bytes writes the digests again, and its commit says which parts moved and why:

    python tests/compiler/test_golden.py
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import golden_programs
from golden_programs import GOLDEN, PROGRAMS

VERSIONS = GOLDEN / "versions.json"


def stored(name: str) -> dict[str, str]:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def test_every_program_has_digests():
    assert {path.stem for path in GOLDEN.glob("*.json")} == {*PROGRAMS, VERSIONS.stem}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_is_what_it_was(name, tmp_path, monkeypatch):
    held_for = json.loads(VERSIONS.read_text())
    if golden_programs.versions() != held_for:
        pytest.skip(f"the digests are of {held_for}")
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
