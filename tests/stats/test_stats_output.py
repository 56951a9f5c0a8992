"""The summary and the trace match the records, checked with numpy and a JSON parser."""

import json
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import stats_buffers
from qaic import _core, errors, stats

KIND = ("MatMul", "Add", "Relu")


def opened(content):
    run, sections, facts = content
    descriptor = stats.Descriptor.from_json(json.dumps(facts))
    return stats.open(_core.encode_stats(run, sections, descriptor.fingerprint), qpc=descriptor)


def executions(buffer, facts):
    """(core, engine, kind) -> ticks and count. A group's execution counts once, with its longest thread."""
    groups, thread_groups = facts["groups"], facts["thread_groups"]
    longest = {}
    for core in buffer.cores["core"]:
        for thread in buffer.threads[buffer.threads["core"] == core]:
            seen = Counter()
            first = int(thread["first_op"])
            for op in buffer.ops[first : first + int(thread["op_count"])]:
                group = groups[thread_groups[thread["thread"]]]
                again = seen[int(op["oc"]), int(op["iter"])]
                seen[int(op["oc"]), int(op["iter"])] += 1
                key = (int(core), group, int(op["oc"]), int(op["iter"]), again)
                longest[key] = max(longest.get(key, 0), int(op["dur_u"]))
    ticks, counts = Counter(), Counter()
    for (core, group, oc, _, _), dur in longest.items():
        ticks[core, group, KIND[oc % 3]] += dur
        counts[core, group, KIND[oc % 3]] += 1
    return ticks, counts


def traced(*arguments, **options):
    return bytes(_core.stats_trace(*arguments, **options))


ROW = re.compile(
    r"^(c\d+)\s+(\d+)\s+([\d.]+)%\s+(N/A|\d+)\s+(N/A|[\d.]+%)\s+(\d+)\s+(N/A|[\d.e+]+)\s+(N/A|[\d.e+]+)\s+"
    r"(N/A|[\d.e+]+)\s+(N/A|[\d.e+]+)\s+(.*)$"
)


@given(content=stats_buffers.contents())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_rows_add_up(content):
    buffer = opened(content)
    text = buffer.summary()
    ticks, counts = executions(buffer, content[2])
    found_ticks, found_counts = {}, {}
    for row in filter(None, map(ROW.match, text.splitlines())):
        kind, engine = row[11].split()[:2]
        if kind not in {"sync", "barrier"}:
            found_ticks[int(row[1][1:]), engine, kind] = int(row[2])
            found_counts[int(row[1][1:]), engine, kind] = int(row[6])
    assert found_ticks == dict(ticks)
    assert found_counts == dict(counts)


@given(content=stats_buffers.contents())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_trace_has_every_execution(content):
    buffer = opened(content)
    facts = content[2]
    parts = [(buffer.compiled, buffer.descriptor.compiled, "net", None)]
    trace = json.loads(traced(parts, flow_events=True, barrier_events=True))["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    assert all((event["pid"], event["tid"]) in names for event in trace)
    ticks, counts = Counter(), Counter()
    for event in trace:
        if event["ph"] == "X" and "opName" in event["args"]:
            _, core, engine = re.fullmatch(
                r"(net)_Core_(\d+)_(G\d+)", names[event["pid"], event["tid"]]
            ).groups()
            ticks[int(core), engine, event["name"]] += int(event["args"]["opUCycle"])
            counts[int(core), engine, event["name"]] += 1
    expected_ticks, expected_counts = executions(buffer, facts)
    assert (ticks, counts) == (expected_ticks, expected_counts)


@given(content=stats_buffers.contents())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_events_of_a_thread_are_its_records(content):
    buffer = opened(content)
    parts = [(buffer.compiled, buffer.descriptor.compiled, "net", None)]
    trace = json.loads(traced(parts, merge_thread_groups=False))["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    origin = min(int(buffer.cores["start_u"].min()), int(buffer.threads["start_u"].min()))
    for thread in buffer.threads:
        first = int(thread["first_op"])
        ops = buffer.ops[first : first + int(thread["op_count"])]
        suffix = re.compile(rf"net_Core_{thread['core']}_G\d+_{thread['thread']}")
        mine = [e for e in trace if "opName" in e["args"] and suffix.fullmatch(names[e["pid"], e["tid"]])]
        assert [int(e["args"]["oc"]) for e in mine] == ops["oc"].tolist()
        starts = (ops["start_u"].astype(np.int64) - origin) / 19.2
        np.testing.assert_allclose([e["ts"] for e in mine], starts, atol=0.0011)
        np.testing.assert_allclose([e["dur"] for e in mine], ops["dur_u"] / 19.2, atol=0.0011)
        ends = [e["ts"] + e["dur"] for e in mine]
        assert all(end <= later["ts"] + 1e-6 for end, later in zip(ends, mine[1:], strict=False))


def test_what_is_written_is_what_is_returned(tmp_path):
    descriptor = stats.Descriptor.from_json(stats_buffers.descriptor_json([5]))
    content = stats_buffers.even_buffer(50, fingerprint=descriptor.fingerprint, descriptor_ops=5)
    buffer = stats.open(content, qpc=descriptor)
    buffer.write_summary(tmp_path / "summary.txt")
    assert (tmp_path / "summary.txt").read_text() == buffer.summary()
    parts = [(buffer.compiled, descriptor.compiled, "net", None)]
    for form in ("json", "perfetto"):
        buffer.write_trace(tmp_path / form, format=form, flow_events=True)
        assert (tmp_path / form).read_bytes() == traced(parts, format=form, flow_events=True)
    with pytest.raises(errors.StatsError, match='json or perfetto, not "xml"'):
        buffer.write_trace(tmp_path / "x", format="xml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["json", "perfetto", "summary.txt"]


def test_large_files_are_let_go_of_and_read_again(tmp_path):
    """Pages of a mapped file above 64 MiB are released after they are read; the data stays the same."""
    descriptor = stats.Descriptor.from_json(stats_buffers.descriptor_json([5]))
    content = stats_buffers.even_buffer(1_450_000, fingerprint=descriptor.fingerprint, descriptor_ops=5)
    assert len(content) > 64 << 20
    (tmp_path / "large.bin").write_bytes(content)
    mapped = stats.open(tmp_path / "large.bin", qpc=descriptor)
    ops = mapped.ops
    before = ops["start_u"][::1000].sum()
    expected = stats.open(content, qpc=descriptor).summary()
    assert mapped.summary() == expected
    assert mapped.summary() == expected
    assert ops["start_u"][::1000].sum() == before
