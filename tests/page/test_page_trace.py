"""Traces as timelines: events of every form become boxes in their rows."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qaic import page
from qaic.errors import InputError
from qaic.page.timeline.trace_page import trace_figures
from qaic.page.timeline.trace_tracks import events, timeline_of_trace

HEAD = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "device"}}


def thread(pid, tid, name):
    return {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def span(name, ts, dur, *, pid=1, tid=1, **args):
    return {"name": name, "cat": "aic", "ph": "X", "ts": ts, "dur": dur, "pid": pid, "tid": tid, "args": args}


DEVICE = [
    HEAD,
    thread(1, 1, "QAicGraph_Core_0"),
    thread(1, 2, "QAicGraph_Core_0_HMX"),
    thread(1, 3, "QAicGraph_Core_0_HMX_DMA"),
    span("Core-0-Execution", 1000.0, 50.0),
    span("sync HMX", 1001.0, 0, tid=2, oc="7", opSyncDurUs="2.500"),
    span(
        "aicconvolutiond32",
        1003.5,
        4.25,
        tid=2,
        oc="7",
        opName="libjit_x /l0/MatMul/__3",
        opOutputSize="2048",
    ),
    span("aicconvolutiond32", 1010.0, 4.0, tid=2, oc="8", opName="/l1/MatMul/__4", opMemory="TCM"),
    span("aiccopytovtcm", 1002.0, 30.0, tid=3, opName="/l0/load/__1"),
    {"name": "dep", "cat": "true", "ph": "s", "id": 1, "ts": 1003.5, "pid": 1, "tid": 2, "args": {"oc": "7"}},
]


def by_line(found):
    return '{"traceEvents": [\n' + ",\n".join(json.dumps(event) for event in found) + "\n]}\n"


FORMS = {
    "lines": by_line,
    "with trailing comma": lambda found: by_line(found).replace("\n]}\n", ",\n"),
    "one line": lambda found: json.dumps({"traceEvents": found}),
    "indented": lambda found: json.dumps({"traceEvents": found, "displayTimeUnit": "ns"}, indent=2),
    "list": json.dumps,
    "list of lines": lambda found: "[" + ",\n".join(json.dumps(event) for event in found) + "]",
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_a_file_say_the_same(tmp_path, form):
    path = tmp_path / "t.json"
    path.write_text(FORMS[form](DEVICE))
    assert list(events(path)) == DEVICE


def test_threads_of_cores_are_rows(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(by_line(DEVICE))
    timeline = timeline_of_trace(path)
    rows = [(track.group, track.name, track.role, len(track.start)) for track in timeline.tracks]
    assert rows == [
        ("QAicGraph_Core_0", "execution", "span", 1),
        ("QAicGraph_Core_0", "HMX", "ops", 2),
        ("QAicGraph_Core_0", "HMX_DMA", "ops", 1),
    ]
    hmx = timeline.tracks[1]
    np.testing.assert_array_equal(hmx.start, [3500, 10_000])
    np.testing.assert_array_equal(hmx.duration, [4250, 4000])
    np.testing.assert_array_equal(hmx.before, [2500, 0])
    labels = timeline.labels
    assert [labels.names[label] for label in hmx.label] == ["/l0/MatMul/__3", "/l1/MatMul/__4"]
    assert [labels.bytes[label] for label in hmx.label] == [2048, None]
    assert timeline.notes == ["Not drawn: 1 of phase s."]
    assert trace_figures(timeline).table("kinds").rows == [
        ("aiccopytovtcm", 1, 30.0, pytest.approx(78.4, abs=0.05)),
        ("aicconvolutiond32", 2, 8.25, pytest.approx(21.6, abs=0.05)),
    ]
    assert trace_figures(timeline).table("rows").rows[1] == ("QAicGraph_Core_0 HMX", 2, 8.25, 3.5, 14.0)


spans = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 5000), st.integers(0, 3)), min_size=1, max_size=60
)


@given(spans)
def test_every_event_is_in_a_row_once(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("trace") / "t.json"
    path.write_text(by_line([span(f"k{tid}", ts / 1000, dur / 1000, tid=tid) for ts, dur, tid in rows]))
    timeline = timeline_of_trace(path)
    first = min(ts for ts, _, _ in rows)
    found = [
        (int(start) + first, int(duration), timeline.labels.kinds[label])
        for track in timeline.tracks
        for start, duration, label in zip(track.start, track.duration, track.label, strict=True)
    ]
    assert sorted(found) == sorted((ts, dur, f"k{tid}") for ts, dur, tid in rows)


def test_what_overlaps_in_one_thread_gets_rows_of_its_own(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(
        by_line([HEAD, span("total", 0.0, 90.0), span("device", 10.0, 30.0), span("post", 50.0, 10.0)])
    )
    timeline = timeline_of_trace(path)
    assert [(track.group, track.name, len(track.start)) for track in timeline.tracks] == [
        ("device", "thread 1", 1),
        ("device", "thread 1 (2)", 2),
    ]


def test_inferences_in_processes_of_their_own_share_rows(tmp_path):
    path = tmp_path / "t.json"
    found = []
    for pid in (1, 2):
        process = {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": "QAicGraph"}}
        found += [process, thread(pid, 1, "QAicGraph_Device"), thread(pid, 2, "QAicGraph_Core_0_CPU")]
        found += [
            span("Device_0-Execution", 90.0 * pid, 20.0, pid=pid),
            span("Gemm", 91.0 * pid, 5.0, pid=pid, tid=2),
        ]
    found += [{"name": "process_name", "ph": "M", "pid": 9, "args": {"name": "HOST_PROC"}}]
    found += [
        span("total", 80.0, 40.0, pid=9),
        span("enqueue", 80.0, 0, pid=9),
        span("device", 85.0, 30.0, pid=9),
    ]
    path.write_text(by_line(found))
    timeline = timeline_of_trace(path)
    assert [(track.group, track.name, track.role, len(track.start)) for track in timeline.tracks] == [
        ("HOST_PROC", "thread 1", "host", 1),
        ("HOST_PROC", "thread 1 (2)", "host", 1),
        ("QAicGraph", "QAicGraph_Device", "span", 2),
        ("QAicGraph_Core_0", "CPU", "ops", 2),
    ]
    assert [kind for kind, *_ in trace_figures(timeline).table("kinds").rows] == ["Gemm"]


def test_a_large_trace_is_merged(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(by_line([span("k", turn * 2.0, 1.0) for turn in range(3000)]))
    timeline = timeline_of_trace(path, most=300)
    assert timeline.operations <= 300
    assert sum(int(track.members.sum()) for track in timeline.tracks) == 3000
    assert "of 3000 events are too short" in timeline.notes[0]


@pytest.mark.parametrize(
    "text",
    [
        "{}", "[]", "[1, 2]", '{"traceEvents": 3}', '{"traceEvents": []}', '{"a": ', "[" * 100_000,
        by_line([HEAD]), by_line([span("a", "x", None)]), by_line([span("a", 1, -5)]),
        by_line([span("a", 1e300, 1)]),
        by_line([span("a", 0, 1)]) + '{"ph": "X", broken\n',
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused(tmp_path, text):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(InputError):
        timeline_of_trace(path)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_drawn(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("trace") / "t.json"
    path.write_bytes(content)
    with pytest.raises(InputError):
        timeline_of_trace(path)


def test_pictures_of_a_trace(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(by_line(DEVICE))
    text = page.write_trace(path, tmp_path / "t.html").read_text()
    assert "<h1>t.json</h1>" in text
    assert "4 events in 3 rows" in text
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    assert page.write_trace(path, tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
