"""The index of decisions is that of the records, and states which of them are superseded."""

import re

from generators.decisions_page import FOLDER, render


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
