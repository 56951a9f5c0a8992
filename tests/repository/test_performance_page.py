"""The performance report can be read again, and its limits of decoders match the measured table."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = "from python import language_table as table; print(table.section(), end='')"


def rows(text, heads):
    found = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"
    ]
    assert found[0][: len(heads)] == heads
    return found[2:]


def test_report_has_the_limits_of_the_measured_table():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT / "benches", capture_output=True, text=True, check=True
    )
    assert done.stdout in (ROOT / "docs" / "performance.md").read_text()
    page = (ROOT / "docs" / "language-models.md").read_text()
    measured = rows(
        page.split("<!-- benches/language_models.py -->")[1].split("<!-- end")[0], ["program", "weights"]
    )
    limits = rows(done.stdout, ["program", "weights", "threads"])
    assert [row[:3] for row in limits] == [row[:3] for row in measured]
    for row, of in zip(limits, measured, strict=True):
        # Rates of reading are rates of tokens in other units; both are rounded.
        assert float(row[5]) / float(row[6]) == pytest.approx(float(of[11]) / float(of[12]), rel=0.03)
        assert row[3:6] + row[7:] == [of[4], of[9], of[10], of[13]]
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC, commit", done.stdout)


AGAIN = """
import report
page = report.TARGET.read_text().splitlines()
facts, sections = report.parts(page)
print("\\n".join(report.report(report.FULL, [], facts, sections)))
"""


def test_a_page_is_written_from_its_parts():
    done = subprocess.run(
        [sys.executable, "-c", AGAIN], cwd=ROOT / "benches", capture_output=True, text=True, check=True
    )
    assert done.stdout == (ROOT / "docs" / "performance.md").read_text()
