"""Pages of captures: their contents, their merged parts, and the escaping of names."""

import base64
import dataclasses
import html.parser
import json
import re
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qaic.stats
import stats_buffers
import stats_captures as made
from page_captures import HOSTILE, card, crowd, one_op
from qaic import _core, page
from qaic.page.document import document
from qaic.page.timeline import Labels, Merger, Timeline, Track, lanes, pack
from qaic.page.timeline.capture_page import capture_page
from qaic.page.timeline.capture_tracks import timeline_of
from qaic.stats.reports import REPORTS, Capture, Column, HostLatencies, Report, Table
from qaic.support.text import escape_html as escape
from qaic.support.text import escape_unprintable as visible


def unpacked(text):
    """Return the data for the script of the page: a header, and the columns of each track."""
    body = zlib.decompress(base64.b64decode(text))
    (length,) = struct.unpack_from("<I", body)
    header = json.loads(body[4 : 4 + length])
    arrays = body[4 + length :]
    columns = [
        {
            name: np.frombuffer(arrays, f"<{code}", track["count"], offset)
            for name, (code, offset) in track["arrays"].items()
        }
        for track in header["tracks"]
    ]
    return header, columns


class Markup(html.parser.HTMLParser):
    """Elements of a page, and the text of its cells."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts, self._open = [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *attribute) for attribute in attrs]
        if tag in {"td", "li", "h1", "h2", "h3", "dd", "span"}:
            self.texts.append("")
            self._open = tag

    def handle_data(self, data):
        if self._open:
            self.texts[-1] += data

    def handle_endtag(self, tag):
        if tag == self._open:
            self._open = None


def report(names, **changed):
    table = Table(
        "rows",
        changed.pop("title", "Rows"),
        (Column("node"), Column("time", "us", "float"), Column("share", None, "percent")),
        [(name, 1.5, 50.0) for name in names],
    )
    return Report("nodes", "Nodes", changed.pop("verdict", []), [table])


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_becomes_markup(name):
    plain = Markup(capture_page(one_op(), [report(["plain"], verdict=["plain"], title="plain")]))
    text = capture_page(one_op(name, name), [report([name], verdict=[name], title=name)])
    page = Markup(text)
    assert page.tags == plain.tags
    changed = (
        set(page.attributes)
        - set(plain.attributes)
        - {("td", "class", "t long"), ("div", "class", "table-block")}
    )
    assert {attribute for _, attribute, _ in changed} <= {"aria-label", "data-title"}
    assert page.texts.count(visible(name)) >= 3
    text.encode()
    assert text.count("</script>") == 2


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=40))
def test_escaped_text_is_text_of_one_line(text):
    shown = escape(text)
    assert not re.search(r"[<>\"'\0-\x08\n-\x1f\u2028-\u202e\ud800-\udfff]", shown)
    (cell,) = Markup(f"<td title='{shown}'>{shown}</td>").texts
    assert cell == visible(text)
    shown.encode()


def test_the_page_needs_nothing_from_anywhere():
    text = capture_page(one_op(), [report(["a"])])
    assert "default-src 'none'" in text.replace("&#x27;", "'")
    assert not re.search(r"https?://|\bimport\b *\(|@import|\burl\(|<link|<img|<iframe", text)
    assert not [
        where
        for where in Markup(text).attributes
        if where[1] in {"src", "style"} or where[1].startswith("on")
    ]


def test_the_policy_allows_the_very_style_and_script():
    import hashlib

    text = capture_page(one_op(), [])
    policy = re.search(r'Security-Policy" content="([^"]*)"', text)[1].replace("&#x27;", "'")
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    for content in (style, script):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_the_overview_comes_first_and_then_the_timeline():
    overview = Report("overview", "Overview", ["The answer."], [])
    text = capture_page(one_op(), [report(["a"]), overview])
    assert re.findall(r'<section id="(\w+)"', text) == ["overview", "timeline", "nodes"]


def test_reports_without_figures_are_one_list_at_the_end():
    empty = Table("t", "T", (Column("a"),), [], "not measured on this device")
    silent = Report("dma", "Transfers <b>", [], [empty])
    text = capture_page(one_op(), [silent, report(["a"])])
    assert re.findall(r'<section id="(\w+)"', text) == ["timeline", "nodes", "silent"]
    assert "<dt>Transfers &lt;b&gt;</dt><dd>not measured on this device</dd>" in text


def test_a_change_has_no_bar_of_a_share():
    columns = (Column("a"), Column("part", kind="percent"), Column("change", kind="change"))
    table = Table("t", "T", columns, [("x", 40.0, 256.0), ("y", 60.0, -30.0), ("z", 0.0, 1.0)])
    text = capture_page(one_op(), [Report("diff", "Difference", [], [table])])
    assert '<td class="n share" data-v="40.0">40.0</td>' in text
    assert '<td class="n" data-v="256.0">256</td>' in text
    assert "change <small>%</small>" in text


def test_facts_are_stat_cards_and_what_was_not_measured_is_said():
    facts = Table(
        "kpis", "Figures", (Column("metric"), Column("value", None, "float"), Column("unit")),
        [("DDR traffic", None, "MB"), ("time", 12.5, "us"), ("read", 2048, "bytes")],
    )  # fmt: skip
    text = capture_page(one_op(), [Report("overview", "Overview", [], [facts])])
    assert '<p class="note">without values: DDR traffic</p>' in text
    assert "<dt>time</dt><dd>12.5 <small>us</small></dd>" in text
    assert "<dt>read</dt><dd>2.00 KiB</dd>" in text


def test_cells_hold_the_full_number():
    table = Table(
        "t", "T", (Column("a", "us", "float"), Column("b", None, "bytes")), [(1 / 3, 12345678), (None, 0)]
    )
    text = capture_page(one_op(), [Report("r", "R", [], [table])])
    assert re.findall(r'data-v="([^"]*)">([^<]*)<', text) == [
        (repr(1 / 3), "0.333"),
        ("12345678", "11.8 MiB"),
        ("0", "0 bytes"),
    ]
    assert text.count(">N/A<") == 1


def test_columns_without_a_value_are_named_and_not_shown():
    columns = (Column("a"), Column("PCycles", None, "int"), Column("DDR", None, "bytes"))
    table = Table("t", "T", columns, [("x", None, None), ("y", None, 5)])
    text = capture_page(one_op(), [Report("r", "R", [], [table])])
    assert re.findall(r'<th scope="col"[^>]*>([^<]*)', text) == ["a", "DDR"]
    assert '<p class="note">columns without values: PCycles</p>' in text


def test_numbers_have_three_digits():
    table = Table("t", "T", (Column("a", None, "float"),), [(105.25,), (2.251,), (12345.6,), (0.00012345,)])
    text = capture_page(one_op(), [Report("r", "R", [], [table])])
    assert re.findall(r'data-v="[^"]*">([^<]*)<', text) == ["105", "2.25", "12,346", "0.000123"]


def test_a_path_that_all_names_have_is_in_the_head():
    names = ["/model/encoder/a/MatMul", "/model/encoder/b/Add", "/model/encoder/b/Mul"]
    table = Table("t", "T", (Column("node"),), [(name,) for name in names])
    text = capture_page(one_op(), [Report("r", "R", [], [table])])
    assert "node <small>/model/encoder/</small>" in text
    assert re.findall(r'title="([^"]*)" data-v="([^"]*)">([^<]*)<', text) == [
        (name, name, name.removeprefix("/model/encoder/")) for name in names
    ]


def test_parts_are_closed_but_the_first_and_show_their_verdict():
    overview = Report("overview", "Overview", ["The answer."], [])
    text = capture_page(one_op(), [overview, report(["a"], verdict=["One.", "Two."])])
    assert '<section id="overview"><h2>' in text
    assert re.search(
        r'<section id="nodes" class="folded"><details><summary><h2>\w+</h2><span>One.</span>', text
    )
    assert text.count("One.") == 1
    assert "<li>Two.</li>" in text


def test_a_long_table_says_what_it_leaves_out():
    table = Table("t", "T", (Column("a", None, "int"),), [(row,) for row in range(5000)])
    text = capture_page(one_op(), [Report("r", "R", [], [table])])
    assert "the first 2000 of 5000 rows" in text
    assert text.count("<tr>") == 2001


@given(
    st.lists(st.tuples(st.integers(0, 2**33), st.integers(0, 2**32 - 1), st.integers(0, 70_000)), max_size=60)
)
def test_what_is_packed_is_what_is_read(rows):
    steps, durations, labels = (
        np.array(column, np.int64) for column in (zip(*rows, strict=True) if rows else ([], [], []))
    )
    track = Track("g", "n", np.cumsum(steps), durations, labels, ns_per_unit=2.5, origin_ns=7.0)
    header, (columns,) = unpacked(pack(Timeline(tracks=[track])))
    assert header["tracks"][0]["count"] == len(rows)
    np.testing.assert_array_equal(columns["step"], steps)
    np.testing.assert_array_equal(columns["duration"], durations)
    np.testing.assert_array_equal(columns["label"], labels)
    assert (header["tracks"][0]["ns_per_unit"], header["tracks"][0]["origin_ns"]) == (2.5, 7.0)


def test_names_are_packed_once_and_visible():
    labels = Labels()
    first = labels.add("a\0", "K", nodes=["n"], output_bytes=3, memory="TCM", types="float", group="HMX")
    second = labels.add("b", "K")
    header, _ = unpacked(pack(Timeline(labels=labels)))
    assert (first, second) == (0, 1)
    assert header["kinds"] == ["K"]
    assert header["labels"] == {
        "name": ["a\\x00", "b"], "kind": [0, 0], "nodes": [["n"], None], "bytes": [3, None],
        "memory": ["TCM", ""], "types": ["float", ""], "group": ["HMX", ""],
    }  # fmt: skip


intervals = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 60)), min_size=1, max_size=200).map(
    sorted
)


def track_of(rows):
    start, duration = np.array(rows, np.int64).T
    return Track("g", "n", start, duration, np.arange(len(rows)))


@given(intervals)
def test_lanes_hold_every_operation_and_none_overlap(rows):
    rows = rows[:14]
    split = list(lanes(track_of(rows)))
    assert sorted(np.concatenate([lane.label for lane in split])) == list(range(len(rows)))
    for lane in split:
        end = lane.start + lane.duration
        assert (lane.start[1:] >= np.maximum.accumulate(end)[:-1] - 2).all()


def test_rounding_does_not_make_lanes():
    (only,) = lanes(track_of([(0, 11), (10, 11), (20, 11)]))
    assert len(only.start) == 3


@given(intervals, st.integers(10, 50))
@settings(max_examples=300)
def test_merged_boxes_cover_what_they_stand_for(rows, most):
    track = track_of(rows)
    extent = int((track.start + track.duration).max()) + 1
    merger = Merger(len(rows), extent, most=most)
    merged = merger.apply(track)
    if len(rows) <= most:
        assert merged is track
        return
    assert merger.merged_away == len(rows) - len(merged.start)
    assert int(merged.members.sum()) == len(rows)
    first = 0
    for start, duration, label, members in zip(
        merged.start, merged.duration, merged.label, merged.members, strict=True
    ):
        own = slice(first, first + int(members))
        first = own.stop
        assert start == track.start[own].min()
        assert start + duration == (track.start[own] + track.duration[own]).max()
        assert track.duration[label] == track.duration[own].max()
        if members > 1:
            assert track.duration[own].max() < merger.cell


def test_a_crowd_is_merged_below_the_limit_and_the_page_says_so():
    timeline = timeline_of(crowd(300_000), most=20_000)
    assert timeline.operations <= 20_000
    working = [track for track in timeline.tracks if track.role == "ops"]
    assert sum(int(track.members.sum()) for track in working) == 300_000
    assert sum(int((track.duration == 5000).sum()) for track in working) == 300
    assert "of 300000 operations are too short" in timeline.notes[0]


def test_a_page_of_many_operations_is_small():
    capture = crowd(200_000)
    assert len(capture_page(capture, [])) < 2_000_000
    assert timeline_of(capture).notes == []


def test_rows_are_threads_with_what_is_inside_and_transfers_apart():
    program = made.Program(groups=made.CARD_GROUPS, thread_groups=made.CARD_THREADS)
    loop = program.op(0, "/loop", "Loop")
    body = program.op(0, "/loop/add", "Add")
    load = program.op(0, "/load", "aiccopytovtcm")
    ops = [
        {"oc": loop, "start_u": 10, "dur_u": 50},
        {"oc": body, "start_u": 12, "dur_u": 5, "kflags": 9},
        {"oc": load, "start_u": 15, "dur_u": 70, "kflags": 5},
        {"oc": body, "start_u": 20, "dur_u": 5, "kflags": 9, "sync_u": 3, "flags": 16},
    ]
    buffers = [
        made.buffer(program, {(0, 4): ops, (1, 0): []}, span=(5, 100), inference=3, epoch_utc_ns=1_000_000),
        made.buffer(program, {(0, 4): ops}, span=(5, 100), inference=2, epoch_utc_ns=10_000_000),
    ]
    timeline = timeline_of(Capture(buffers))
    names = [(track.group, track.name, len(track.start)) for track in timeline.tracks]
    assert names == [
        ("device 0, core 0", "execution", 2),
        ("device 0, core 0", "HMX", 2),
        ("device 0, core 0", "HMX inside", 4),
        ("device 0, core 0", "HMX DMA", 2),
        ("device 0, core 1", "execution", 1),
    ]
    inside = timeline.tracks[2]
    times = inside.origin_ns + inside.start * inside.ns_per_unit
    # One tick is 1 us; the second inference began 9 ms after the first, regardless of their numbers.
    np.testing.assert_allclose(times, [7000, 15000, 9_007_000, 9_015_000])
    np.testing.assert_array_equal(inside.before, [0, 3, 0, 3])
    assert [sample.start_ns for sample in timeline.samples] == [9_000_000, 0]


TIMES = [
    # inference, activation, enqueued, begun, inputs ready, executed, outputs ready, completed
    (0, 0, 1000, 1500, 2000, 9000, 9500, 9600),
    (1, 1, 1200, 1200, 1200, 8000, 8700, 8800),
    (2, 0, 1300, 9600, 9700, 15_000, 15_500, 15_600),
]


def host_samples():
    names = (
        "inference activation enqueued_ns begun_ns inputs_ready_ns executed_ns outputs_ready_ns completed_ns"
    )
    fields = [(name, "<u8") for name in [*names.split(), "program", "queue_depth", "in_queue"]]
    return np.array([(*row, 0, 0, 1) for row in TIMES], fields)


def test_the_host_is_drawn_on_the_time_of_the_device():
    host = dataclasses.replace(HostLatencies.of_samples(host_samples()), epoch_utc_ns=10**18)
    program = made.cpu_program([("/a", "Gemm")])
    ops = {(0, 0): [{"oc": 0, "start_u": 4, "dur_u": 3}]}
    # One tick is 1 us: the device began at 10**18 + 3000 ns.
    device = made.buffer(program, ops, span=(3, 8), epoch_utc_ns=10**18, device=1)
    timeline = timeline_of(Capture([device], host=host))
    rows = [(track.group, track.name, len(track.start)) for track in timeline.tracks]
    assert rows[:2] == [("host", "activation 0", 8), ("host", "activation 1", 3)]
    first = timeline.tracks[0]
    np.testing.assert_array_equal(
        first.origin_ns + first.start, [-1500, -1000, 6000, 6500, 6600, 6700, 12_000, 12_500]
    )
    np.testing.assert_array_equal(first.duration, [500, 7000, 500, 100, 100, 5300, 500, 100])
    np.testing.assert_array_equal(first.before, [500, 0, 0, 0, 8300, 0, 0, 0])
    kinds = [timeline.labels.kinds[label] for label in first.label]
    assert kinds[:3] == ["pre-processing", "execution", "post-processing"]
    assert timeline.labels.names[first.label[4]] == "inference 2"


def test_the_host_alone_is_a_timeline_too():
    host = HostLatencies.of_samples(host_samples())
    timeline = timeline_of(Capture((), host=host))
    assert [track.name for track in timeline.tracks] == ["activation 0", "activation 1"]
    assert 'id="timeline-data"' in capture_page(Capture((), host=host), [])


def test_the_host_is_left_out_where_clocks_cannot_be_compared():
    timeline = timeline_of(Capture(one_op().buffers, host=HostLatencies.of_samples(host_samples())))
    assert not [track for track in timeline.tracks if track.group == "host"]
    assert "does not show the time of day" in timeline.notes[0]


def test_devices_without_a_time_of_day_begin_together():
    program = made.cpu_program([("/a", "Gemm")])
    ops = {(0, 0): [{"oc": 0, "start_u": 1_000_010, "dur_u": 5}]}
    first = made.buffer(program, ops, span=(1_000_000, 1_000_020))
    second = made.buffer(
        program, {(0, 0): [{"oc": 0, "start_u": 40, "dur_u": 5}]}, span=(30, 60), cores={0: {"slice": 1}}
    )
    timeline = timeline_of(Capture([first, second]))
    assert [(track.group, track.origin_ns) for track in timeline.tracks if track.role == "span"] == [
        ("device 0, core 0", 0.0),
        ("device 1, core 0", 0.0),
    ]


def test_inferences_whose_clock_starts_anew_are_shown_in_turn():
    timeline = timeline_of(card())
    assert [sample.start_ns for sample in timeline.samples] == [0, 341_000]
    assert ["one after the other" in note for note in timeline.notes] == [True]
    assert max(len(track.name) for track in timeline.tracks) == len("execution")


@given(stats_buffers.contents(), st.integers(1, 40))
@settings(max_examples=25, deadline=None)
def test_any_buffer_becomes_a_page_with_every_operation(content, most):
    run, sections, facts = content
    descriptor = _core.StatsDescriptor.from_json(json.dumps(facts).encode())
    encoded = _core.encode_stats(run, sections, descriptor.fingerprint)
    buffer = qaic.stats.open(encoded, qpc=qaic.stats.Descriptor(descriptor))
    capture = Capture([buffer])
    text = capture_page(capture, [make(capture) for make in REPORTS.values()])
    Markup(text)
    count = len(sections["OP"])
    full = timeline_of(capture)
    assert sum(len(track.start) for track in full.tracks if track.role == "ops") == count
    few = timeline_of(capture, most=most)
    drawn = [track for track in few.tracks if track.role == "ops"]
    members = [len(track.start) if track.members is None else int(track.members.sum()) for track in drawn]
    assert sum(members) == count


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    target = tmp_path / "page.html"
    assert page.write(one_op(), [], target) == target
    before = target.read_text()
    assert before.endswith("</html>\n")
    with pytest.raises(FileNotFoundError):
        page.write(one_op(), [], tmp_path / "missing" / "page.html")
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        page.write(one_op("/other"), [], target)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert target.read_text() == before


def test_a_page_without_operations_has_no_timeline():
    text = document("t", "s", [("a", "A", "<p>x</p>")])
    assert 'timeline-data">' not in text
    Markup(text)


def test_a_kind_has_the_same_color_on_every_page():
    """A kind has the same color for any other kinds and any longest kind."""

    def colors(*kinds):
        program = made.cpu_program([(f"/n{place}", kind) for place, kind in enumerate(kinds)])
        ops = [{"oc": oc, "start_u": 10 * oc, "dur_u": 9 - oc} for oc in range(len(kinds))]
        timeline = timeline_of(Capture([made.buffer(program, {(0, 0): ops}, device=1)]))
        header = unpacked(pack(timeline))[0]
        return dict(zip(header["kinds"], header["colors"], strict=True))

    one = colors("Conv", "Relu", "MatMul", "Concat", "Softmax", "Strange")
    other = colors("Strange", "Concat", "Softmax", "MatMul", "Relu", "FusedConv", "Conv")
    assert {kind: other[kind] for kind in one} == one
    assert one["Strange"] == -1
    del one["Strange"]
    assert len(set(one.values())) == len(one)
    assert other["FusedConv"] == other["Conv"]


def test_every_class_of_a_page_has_a_look(tmp_path):
    """Regression: with `stat_cards` in the markup and `.stat-cards` in the styles, figures had no style."""
    capture = card()
    reports = [make(capture) for make in REPORTS.values()]
    text = page.write(capture, reports, tmp_path / "page.html").read_text()
    style = text.partition("<style>")[2].partition("</style>")[0]
    body = re.sub(r"<script.*?</script>", "", text.partition("</style>")[2], flags=re.DOTALL)
    used = {name for group in re.findall(r'class="?([\w -]+)', body) for name in group.split()}
    # The last three are placeholders for scripts.
    assert {name for name in used if f".{name}" not in style} <= {"table-block", "halves", "rows"}
    assert "stat-cards" in used
