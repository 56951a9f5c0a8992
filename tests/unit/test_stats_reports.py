"""Reports over captures made by hand: what each must say is known by construction."""

import pytest

from qaic.errors import StatsError
from qaic.stats.reports import REPORTS, Capture
from qaic.stats.reports.render_csv import to_csv
from qaic.stats.reports.render_text import to_text
from stats_captures import buffer, capture, cpu_program, in_row


@pytest.fixture
def mlp():
    program = cpu_program([("/l0/MatMul", "FusedGemm"), ("/l0/Relu", "Relu"), ("/l1/MatMul", "FusedGemm")])
    return buffer(program, {(0, 0): in_row([50, 10, 30], gap=5, start=10)}, span=(0, 120), device=1)


def test_operations_are_summed_by_kind(mlp):
    table = REPORTS["ops"](capture(mlp)).table("kinds")
    assert table.column("kind") == ["FusedGemm", "Relu"]
    assert table.column("time") == [80, 10]
    assert table.column("share") == pytest.approx([800 / 9, 100 / 9])
    assert table.column("count") == [2, 1]
    assert table.column("bucket") == ["compute", "elementwise"]
    assert table.column("PCycles") == [None, None]


def test_nothing_captured_is_an_error():
    with pytest.raises(StatsError, match="no stats buffer"):
        Capture([])


def test_text_and_csv_show_the_same_rows(mlp):
    report = REPORTS["ops"](capture(mlp))
    text = to_text(report)
    assert "FusedGemm" in text
    assert "N/A: types" not in text
    assert (
        to_csv(report.table("kinds"))
        .splitlines()[1]
        .startswith("FusedGemm,CPU,HOST,float,compute,2,80.0,88.8")
    )


@pytest.mark.parametrize("name", REPORTS)
def test_every_report_tells_of_a_small_run(name, mlp):
    report = REPORTS[name](capture(mlp))
    assert report.name == name
    assert to_text(report).startswith(f"== {report.title} ==")
    for table in report.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
