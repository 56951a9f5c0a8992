"""Every report, in every form, of whatever a device may have written."""

import csv
import io
import json

from hypothesis import given, settings

import qaic.stats
import stats_buffers
from qaic import _core
from qaic.stats.reports import REPORTS, Capture, diff
from qaic.stats.reports.output import rendered


@settings(max_examples=60)
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
