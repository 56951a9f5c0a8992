"""Records: the same dictionaries as before, with attributes."""

import copy
import json
import pickle
import re
import typing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qaic
from qaic.attribute_dict import AttributeDict
from qaic.profile import Stages
from qaic.qpc import Header
from qaic.report import Table, columns_of
from qaic.report.html import NOTEBOOK_ROWS
from qaic.runtime.latency import Metrics, summarize
from qpc_support import FIXTURES


def records():
    yield qaic.Qpc(FIXTURES[0]).header
    yield summarize(np.array([1e-3, 2e-3, 5e-3]))
    yield Stages(waiting=1e-6, inputs=2e-6, execution=3e-3, outputs=1e-6, completion=0.0)


@pytest.mark.parametrize("record", list(records()), ids=lambda record: type(record).__name__)
def test_keys_are_attributes_and_all_are_declared(record):
    assert list(typing.get_type_hints(type(record))) == list(record)
    for key, value in record.items():
        assert getattr(record, key) == record[key] == value
        assert key in dir(record)
        assert f">{key}</td>" in record._repr_html_()
    assert json.loads(json.dumps(record)) == record == dict(record)
    for again in (copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
        assert type(again) is type(record)
        assert again == record
    with pytest.raises(AttributeError, match="has no 'absent'"):
        _ = record.absent


def test_records_print_as_what_they_are():
    assert repr(Header(magic=1, size=2)) == "Header(magic=1, size=2)"
    assert isinstance(summarize(np.array([1.0])), Metrics)


@given(count=st.integers(0, 2 * NOTEBOOK_ROWS))
def test_tables_of_notebooks_say_how_much_they_leave_out(count):
    rows = [(number, f"row {number}") for number in range(count)]
    text = Table("a", "A", columns_of("a:int | b"), rows)._repr_html_()
    assert text.count(">row ") == min(count, NOTEBOOK_ROWS)
    assert (f"the first {NOTEBOOK_ROWS} of {count} rows<" in text) == (count > NOTEBOOK_ROWS)
    assert (">none<" in text) == (count == 0)


def test_notebooks_show_values_as_tables_do():
    record = AttributeDict(
        low=5.0292001105844975e-05, narrow=np.float32(2.5), count=12345, absent=None, on=True, text="<b>"
    )
    page = record._repr_html_()
    cells = re.findall("<td[^>]*>([^<]*)</td>", page)
    assert cells[1::2] == ["0.0000503", "2.50", "12,345", "N/A", "True", "&lt;b&gt;"]
    # Scripts sort and copy by the complete value.
    assert 'data-v="5.0292001105844975e-05"' in page
    assert ">AttributeDict<" in AttributeDict()._repr_html_()
    assert ">none<" in AttributeDict()._repr_html_()
