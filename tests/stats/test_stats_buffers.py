"""Properties of stats buffers in Python: a reader returns what was written, and no bytes crash it."""

import json
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stats_buffers as made
from qaic import _core, stats
from qaic.errors import StatsError

ARRAYS = {
    "CORE": "cores",
    "THREAD": "threads",
    "PORT": "ports",
    "OP": "ops",
    "PMU": "pmu",
}


@given(made.contents(), st.integers(0, 200))
def test_what_is_written_is_read(content, room):
    run, sections, facts = content
    descriptor = stats.Descriptor.from_json(json.dumps(facts))
    exact = _core.encode_stats(run, sections, descriptor.fingerprint)
    counts = {name: len(records) for name, records in sections.items()}
    assert len(exact) == _core.stats_capacity(counts)
    roomy = _core.encode_stats(run, sections, descriptor.fingerprint, len(exact) + room)
    for raw in (exact, roomy):
        buffer = stats.open(raw, qpc=descriptor, check=True)
        assert buffer.warnings == ()
        assert {name: getattr(buffer.run, name) for name in run} == run
        for name, attribute in ARRAYS.items():
            assert buffer.has(name) == (name in sections)
            expected = sections.get(name, np.zeros(0, stats.RECORDS[name]))
            np.testing.assert_array_equal(getattr(buffer, attribute), expected)
        assert buffer.meta == json.loads(sections.get("META", b"{}"))
    again = _core.StatsBuffer.of_sections(run, sections, descriptor.compiled)
    again.check()
    assert bytes(again.section("OP")[0]) == sections["OP"].tobytes()


@given(made.contents(), st.data())
def test_what_does_not_fit_is_cut_at_the_end(content, data):
    run, sections, facts = content
    descriptor = stats.Descriptor.from_json(json.dumps(facts))
    counts = {name: len(records) for name, records in sections.items()}
    least, most = _core.stats_capacity(counts | {"OP": 0}), _core.stats_capacity(counts)
    size = data.draw(st.integers(least - 64, most))
    if size < least:
        with pytest.raises(StatsError) as caught:
            _core.encode_stats(run, sections, descriptor.fingerprint, size)
        assert caught.value.code == "stats.buffer_too_small"
        return
    raw = _core.encode_stats(run, sections, descriptor.fingerprint, size)
    assert len(raw) == size
    buffer = stats.open(raw, qpc=descriptor, check=True)
    kept = len(buffer.ops)
    assert buffer.run.ops_truncated == (kept < counts["OP"]) == (not buffer.run.complete)
    np.testing.assert_array_equal(buffer.ops, sections["OP"][:kept])
    assert kept == counts["OP"] or _core.stats_capacity(counts | {"OP": kept + 1}) > size
    claimed = [range(t["first_op"], t["first_op"] + t["op_count"]) for t in buffer.threads]
    assert sorted(index for mine in claimed for index in mine) == list(range(kept))


@given(made.contents(), st.data())
def test_columns_are_the_fields(content, data):
    run, sections, _ = content
    buffer = stats.open(_core.encode_stats(run, sections))
    section = data.draw(st.sampled_from(sorted(sections.keys() - {"META"})))
    names = data.draw(st.lists(st.sampled_from(stats.RECORDS[section].names), unique=True))
    start, stop = data.draw(st.integers(-20, 40)), data.draw(st.none() | st.integers(-20, 40))
    columns = buffer.columns(section, names, start, stop)
    assert list(columns) == names
    for name, column in columns.items():
        assert column.flags.c_contiguous
        assert column.dtype == stats.RECORDS[section][name].base
        np.testing.assert_array_equal(column, sections[section][start:stop][name])
    with pytest.raises(KeyError):
        buffer.columns(section, ["speed"])


def read_everything(raw, descriptor):
    """Read a buffer in every possible way and return its problems; no other error is allowed."""
    try:
        buffer = stats.open(raw, qpc=descriptor, force=True)
    except StatsError as error:
        return error.code
    arrays = [getattr(buffer, name) for name in (*ARRAYS.values(), "rings", "op_pmu", "pmu_events")]
    assert all(array.sum(dtype="u8") >= 0 for array in arrays if array.dtype.names is None)
    assert sum(array.tobytes().count(0) for array in arrays) >= 0
    assert isinstance(buffer.meta, dict)
    assert sum(buffer.threads["op_count"].tolist()) == len(buffer.ops)
    assert str(buffer.run)
    try:
        buffer.check()
    except StatsError as error:
        return error.code
    assert buffer.ops["core"].max(initial=0) < max(buffer.run.cores, 1)
    return "stats.sound"


@given(
    made.contents(),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), max_size=6),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_changed_bytes_are_refused_or_read(content, changes, sealed, cut):
    run, sections, facts = content
    raw = bytearray(_core.encode_stats(run, sections))
    for place, change in changes:
        # Half of the changes are in the header and the directory, which are a small part of the bytes.
        raw[place % (len(raw) if place % 2 else 128 + 32 * len(sections))] ^= change
    if sealed:
        for entry in range(len(sections)):
            struct.pack_into("<I", raw, 128 + 32 * entry + 28, 0)
        struct.pack_into("<I", raw, 120, zlib.crc32(raw[:120]))
    descriptor = stats.Descriptor.from_json(json.dumps(facts))
    for found in (bytes(raw), bytes(raw[: cut % len(raw)])):
        assert read_everything(found, descriptor).startswith("stats.")


@given(st.binary(max_size=600), st.booleans())
def test_any_bytes_are_refused_or_read(raw, magic):
    assert read_everything(b"OQSTATS1" + raw if magic else raw, None).startswith("stats.")


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_no_descriptor(text):
    with pytest.raises(StatsError) as caught:
        stats.Descriptor.from_json(text)
    assert caught.value.code == "stats.descriptor"
