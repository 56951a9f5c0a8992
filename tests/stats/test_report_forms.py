"""A report as text, in a notebook, and as columns for other libraries."""

import sys
import types

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qaic.errors import StateError
from qaic.report.text import rows_text, to_text
from qaic.stats.reports import Column, Report, Table

CELLS = st.none() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False)
NAMES = st.text(st.characters(blacklist_categories=("Cs",)), max_size=12)


@st.composite
def tables(draw):
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    columns = tuple(Column(name, kind="float") for name in names)
    rows = draw(st.lists(st.tuples(*[CELLS for _ in names]), max_size=5))
    return Table("table", draw(NAMES), columns, rows)


@given(table=tables(), verdict=st.lists(NAMES, max_size=2))
def test_every_form_has_every_cell(table, verdict):
    columns = table.to_columns()
    assert list(columns) == [column.title for column in table.columns]
    rows = list(zip(*columns.values(), strict=True))
    assert rows == [tuple(row) for row in table.rows]
    report = Report("name", "Title", verdict, [table])
    assert str(report) + "\n" == to_text(report).rstrip("\n") + "\n"
    page = report._repr_html_()
    assert page.count("<tr>") == (1 + len(table.rows) if table.rows else 0)


@given(st.floats(-1e4, 1e4) | st.sampled_from([99.95, 99.97, 100 - 1e-9, 0.04999, 1e-300]))
@example(0.0123)
@example(0.0096)
@example(99.9904)
def test_percentages_are_0_or_100_only_if_they_are(value):
    columns = (Column("share", kind="percent"),)
    shown = rows_text(columns, [(value,)]).split()[-1]
    text = shown.replace(",", "")
    assert (float(text) == 0) == (value == 0)
    assert abs(float(text)) != 100 or abs(value) >= 100 - 1e-10
    assert float(text) == pytest.approx(value, abs=0.0501 if abs(value) < 100.05 else 0.501)
    assert f">{shown}</td>" in Table("t", "t", columns, [(value,)])._repr_html_()
    if 0.05 < abs(value) < 99.94:
        assert text == f"{value:.1f}"
    if 0 < abs(value) < 0.05:
        assert len(text.lstrip("-0.")) == 1


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=40))
def test_all_shares_together_are_100(times):
    """Regression: 99.99999999999999 was shown."""
    together = 100 * float(np.sum(times)) / sum(reversed(times))
    assert rows_text((Column("share", kind="percent"),), [(together,)]).split()[-1] == "100.0"


@pytest.mark.parametrize("size", [24, 25])
def test_a_table_with_a_long_name_has_the_whole_width(size):
    page = Table("t", "t", (Column("node"), Column("time", "us", "float")), [("n" * size, 1)])._repr_html_()
    assert ("narrow" in page) == (size == 24)


@pytest.mark.parametrize("whole", ["", "--json"])
def test_what_a_table_omits_is_where_the_caller_says(whole):
    table = Table("t", "t", (Column("a"), Column("second")), [("x" * 80, "y")] * 50)
    text = to_text(Report("r", "R", tables=[table]), width=43, whole=whole)
    see = f"; see {whole}" if whole else ""
    assert text.endswith(f"  columns without room: second{see}\n  ... and 10 more{see}\n")
    assert rows_text(table.columns, table.rows, 43, whole).endswith(f"\ncolumns without room: second{see}")


def test_next_steps_are_escaped():
    report = Report("r", "R", next_steps={"a\u202e": "openqaic plot '\x1b[2J\n'", "": "\x07"})
    lines = str(report).splitlines()
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)


def test_texts_are_escaped_in_notebooks():
    table = Table("t", "<b>", (Column("<i>"),), [("<script>",)])
    page = Report("name", "<u>", ["<s>"], [table])._repr_html_()
    for text in ("<b>", "<i>", "<script>", "<u>", "<s>"):
        assert text not in page


@pytest.mark.parametrize(("library", "method"), [("pandas", "to_pandas"), ("pyarrow", "to_arrow")])
def test_libraries_get_the_columns_or_are_named(monkeypatch, library, method):
    table = Table("t", "t", (Column("time", "us", "float"), Column("node")), [(1.5, "a"), (None, "b")])
    stand_in = types.ModuleType(library)
    stand_in.DataFrame = stand_in.table = lambda columns: ("made", columns)
    monkeypatch.setitem(sys.modules, library, stand_in)
    made = ("made", {"time us": [1.5, None], "node": ["a", "b"]})
    assert getattr(table, method)() == made
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(StateError, match=f"{library} is not installed") as caught:
        getattr(table, method)()
    assert "to_columns() needs no library" in caught.value.hints[0]
