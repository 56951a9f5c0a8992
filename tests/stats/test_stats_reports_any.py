"""Every report, in every format, for any records that a device can write."""

import csv
import io
import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st

import qaic.stats
import stats_buffers
import stats_captures as made_of
from qaic import _core
from qaic.report.files import rendered
from qaic.stats.reports import REPORTS, Capture, diff


@settings(max_examples=30)
@given(stats_buffers.contents())
def test_reports_of_any_buffer_have_every_form(made):
    run, sections, facts = made
    descriptor = qaic.stats.Descriptor.from_json(json.dumps(facts))
    encoded = _core.encode_stats(run, sections, descriptor.fingerprint)
    named = Capture([qaic.stats.open(encoded, qpc=descriptor)])
    nameless = Capture([qaic.stats.open(encoded)])
    for capture in (named, nameless):
        reports = [*(make(capture) for make in REPORTS.values()), diff(named, capture)]
        for report in reports:
            for table in report.tables:
                for column, cells in zip(table.columns, zip(*table.rows, strict=True), strict=False):
                    texts = [isinstance(cell, str) for cell in cells if cell is not None]
                    assert all(text == (column.kind == "text") for text in texts), (report.name, table.name)
        assert rendered(reports, "text", width=100).count("\n== ") == len(reports) - 1
        parsed = json.loads(rendered(reports, "json", width=0))
        assert [one["name"] for one in parsed] == [report.name for report in reports]
        for row in csv.reader(io.StringIO(rendered(reports, "csv", width=0))):
            assert row is not None
    times = [sum(REPORTS["ops"](one).table("kinds").column("time")) for one in (named, nameless)]
    assert times[0] == times[1] or abs(times[0] - times[1]) <= 1e-6 * max(times)


ROW = re.compile(
    r"^c\d+\s+(\d+)\s+[\d.]+%\s+\S+\s+\S+\s+(\d+)\s+\S+\s+\S+\s+\S+\s+\S+\s+(?!sync |barrier )(\S+)"
)


@given(st.integers(0, 50), st.integers(1, 9))
def test_reports_and_summary_agree(executions, descriptor_ops):
    descriptor = qaic.stats.Descriptor.from_json(stats_buffers.descriptor_json([descriptor_ops]))
    sections = stats_buffers.even_sections(executions, descriptor_ops=descriptor_ops)
    encoded = _core.encode_stats(stats_buffers.run_facts(), sections, descriptor.fingerprint)
    buffer = qaic.stats.open(encoded, qpc=descriptor)
    rows = {}
    for line in buffer.summary().splitlines():
        if match := ROW.match(line):
            rows[match[3]] = (int(match[1]), int(match[2]))
    table = REPORTS["ops"](Capture([buffer])).table("kinds")
    ticks = [round(time * 19.2) for time in table.column("time")]
    found = zip(table.column("kind"), zip(ticks, table.column("count"), strict=True), strict=True)
    assert dict(found) == rows
    assert sum(count for _, count in rows.values()) == executions


@given(times=st.lists(st.integers(1, 10**6), min_size=2, max_size=9), data=st.data())
def test_equal_times_in_another_order_have_no_difference(times, data):
    """Regression: an error of rounding was shown as a change."""
    sides = []
    for durations in (times, data.draw(st.permutations(times))):
        program = made_of.cpu_program([(f"/n{place}", "Mul") for place in range(len(durations))])
        made = made_of.buffer(program, {(0, 0): made_of.in_row(durations)}, ucycle_hz=19_200_000)
        sides.append(Capture([made]))
    (row,) = diff(*sides).table("kinds").rows
    assert row[3:5] == (0.0, 0.0)
