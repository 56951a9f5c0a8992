"""The index of decisions matches the records, and states which of them are superseded."""

import re
import tomllib

from generators.decisions_page import FOLDER, render
from guide_blocks import ROOT


def test_the_index_is_the_generated_one():
    assert (FOLDER / "README.md").read_text() == render(), "write it again: make docs"


def test_a_record_that_is_superseded_anywhere_is_marked_in_the_index():
    index = (FOLDER / "README.md").read_text().splitlines()
    for path in FOLDER.glob("[0-9]*.md"):
        row = next(line for line in index if f"]({path.name}) | " in line)
        assert ("uperseded" in path.read_text()) == ("Superseded" in row.rsplit("|", 2)[1]), path.name


def test_a_record_refers_to_others_by_links():
    for path in FOLDER.glob("[0-9]*.md"):
        assert not re.findall(r"\b(?:ADR|[Dd]ecision|Record) \d+", path.read_text()), path.name


def dependencies():
    """Names of the crates of the workspace and of the packages of every extra and group."""
    crates = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["dependencies"]
    yield from (name for name, entry in crates.items() if "path" not in entry)
    python = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, groups = python["project"], python["dependency-groups"].values()
    for listed in (project["dependencies"], *project["optional-dependencies"].values(), *groups):
        for entry in listed:
            name = re.match(r"[\w.-]+", entry) if isinstance(entry, str) else None
            if name and name[0] != project["name"]:
                yield name[0]


def test_a_record_names_every_dependency():
    records = "\n".join(path.read_text() for path in FOLDER.glob("[0-9]*.md"))
    found = set(dependencies())
    assert len(found) > 70
    missing = {
        name for name in found if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", records, re.I)
    }
    assert not missing, "a new dependency needs a line in docs/adr"
