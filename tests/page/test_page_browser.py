"""Pages in a browser: tables contain the numbers of the reports, a timeline is drawn, nothing fails."""

import json
import re

import numpy as np
import pytest

import stats_captures as made
from browser import NEEDS_BROWSER, assert_healthy, opener
from page_captures import HOSTILE, card, crowd, one_op
from qaic import page
from qaic.page.graph import Coloring, DrawnGraph, DrawnNode
from qaic.page.latency import Distribution
from qaic.page.latency_page import latency_page
from qaic.report.html import is_facts
from qaic.stats.reports import REPORTS, Capture, Column, Report, Table
from qaic.support.text import duration
from qaic.support.text import escape_html as escape
from qaic.support.text import escape_unprintable as visible

pytestmark = NEEDS_BROWSER


@pytest.fixture(scope="module")
def show(tmp_path_factory):
    with opener(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.mark.parametrize("width", [500, 1400])
def test_commands_are_whole_and_copied(tmp_path, show, width):
    """Regression: commands were cut on narrow screens, and could only be copied by hand."""
    line = (
        "openqaic compile /models/a-long-name/resnet-50.onnx -o program --convert-to-fp16 --batchsize=8 -q=''"
    )
    hostile = f"openqaic inspect {'x' * 300} '<b>&amp;'"
    steps = {"": line, "for `latency`, with --batchsize": hostile}
    path = tmp_path / "page.html"
    path.write_text(
        latency_page({"": Distribution.of([1.0])}, title="t", reports=[Report("r", "R", [], [], steps)])
    )
    drive = f"""
    document.body.style.width = "{width}px";
    const copied = [];
    const clipboard = {{ writeText: async (text) => copied.push(text) }};
    Object.defineProperty(navigator, "clipboard", {{ value: clipboard }});
    const items = [...document.querySelectorAll(".commands li")];
    for (const item of items) item.querySelector("button").click();
    await after(() => {{}});
    const isCut = (part) => part.clientWidth && part.scrollWidth > part.clientWidth + 1;
    const cut = items.filter((item) => [item, ...item.children].some(isCut));
    document.documentElement.dataset.copied = JSON.stringify(copied);
    document.documentElement.dataset.cut = String(cut.length);
    """
    dom = show(path, drive)
    assert_healthy(dom)
    assert json.loads(dom.root["data-copied"]) == [line, hostile]
    assert dom.root["data-cut"] == "0"


def test_tables_hold_the_numbers_of_the_reports(tmp_path, show):
    capture = card()
    reports = [make(capture) for make in REPORTS.values()]
    dom = show(page.write(capture, reports, tmp_path / "page.html"))
    assert_healthy(dom)
    seen = 0
    pairs = [(made_report, table) for made_report in reports for table in made_report.tables]
    for report, table in pairs:
        if table.name == "advice":
            # A list, with all texts of the table.
            source = (tmp_path / "page.html").read_text()
            assert table.rows
            assert all(escape(text) in source for row in table.rows for text in row)
            continue
        if table.name == "types":
            # Bars, with name, share and time of each row.
            source = (tmp_path / "page.html").read_text()
            assert table.rows
            for name, _, time_us, share in table.rows:
                assert f'title="{escape(name)}"' in source
                assert f"<strong>{share:.1f} %</strong> {duration(time_us)}" in source
            continue
        if (report.name, table.name) not in dom.cells:
            assert not table.rows or is_facts(table)
            continue
        body = [row for row in dom.cells[report.name, table.name] if row]
        assert len(body) == len(table.rows)
        known = [
            place for place in range(len(table.columns)) if any(row[place] is not None for row in table.rows)
        ]
        for shown, row in zip(body, table.rows, strict=True):
            for (value, text), cell in zip(shown, [row[place] for place in known], strict=True):
                if cell is None:
                    assert text == "N/A"
                elif isinstance(cell, str):
                    assert (value or text) == cell
                else:
                    assert float(value) == cell
                seen += 1
    assert seen > 200


def test_the_timeline_is_drawn(tmp_path, show):
    dom = show(page.write(card(), [], tmp_path / "page.html"))
    assert_healthy(dom)
    drawn = dom.sections["timeline"]
    assert drawn["data-state"] == "drawn"
    # Two inferences of twelve threads with five operations each, and one row for each core.
    assert int(drawn["data-operations"]) == 2 * (12 * 5 + 2)
    assert int(drawn["data-rows"]) == 14
    assert int(drawn["data-drawn"]) > 20
    assert "aicconvolutiond32" in dom.parts["legend"]
    assert "shares of the time of inference 4 (" in dom.parts["legend"]


def test_shares_of_the_legend_are_those_of_the_tables(tmp_path, show):
    """The host interrupted an operation of one inference, which changes the shares of all inferences."""
    program = made.cpu_program([("/a", "Conv"), ("/b", "Mul"), ("/c", "Relu")])
    buffers = []
    for number, times in enumerate([(50, 30, 20), (52, 4111, 20), (49, 31, 19), (51, 29, 21)]):
        buffers.append(made.buffer(program, {(0, 0): made.in_row(times)}, inference=number, device=1))
    capture = Capture(buffers)
    dom = show(page.write(capture, [], tmp_path / "page.html"))
    assert_healthy(dom)
    table = REPORTS["ops"](capture).table("kinds")
    for kind, share in zip(table.column("kind"), table.column("share"), strict=True):
        assert f"{kind} {share:.1f} %" in dom.parts["legend"]


def test_a_page_with_every_report_has_at_most_four_screens(tmp_path, show):
    program = made.cpu_program([(f"/layers.{place}/attention/MatMul", "MatMul") for place in range(300)])
    rng = np.random.default_rng(2)
    rows = [made.in_row(rng.integers(10, 90, 300).tolist()) for _ in range(5)]
    capture = Capture([made.buffer(program, {(0, 0): row}, inference=n) for n, row in enumerate(rows)])
    reports = [make(capture) for make in REPORTS.values()]
    drive = "document.documentElement.dataset.screens = document.documentElement.scrollHeight / innerHeight;"
    dom = show(page.write(capture, reports, tmp_path / "page.html"), drive)
    assert_healthy(dom)
    assert float(dom.root["data-screens"]) <= 4


@pytest.mark.parametrize("width", [400, 500, 721, 1400])
def test_no_part_is_wider_than_the_window(tmp_path, show, width):
    """Tables, commands and the timeline scroll in their own areas."""
    capture = card()
    reports = [make(capture) for make in REPORTS.values()]
    path = page.write(capture, reports, tmp_path / "page.html")
    dom = show(
        path,
        """document.querySelectorAll("details").forEach((part) => { part.open = true; });
        const all = document.documentElement;
        all.dataset.room = [all.clientWidth > 300, all.scrollWidth - all.clientWidth];""",
        width=width,
    )
    assert_healthy(dom)
    assert dom.root["data-room"] == "true,0"


def test_one_operation_and_a_hundred_thousand(tmp_path, show):
    for capture, count in ((one_op(), 1), (crowd(100_000), 100_000)):
        dom = show(page.write(capture, [], tmp_path / "page.html"))
        assert_healthy(dom)
        assert int(dom.sections["timeline"]["data-operations"]) == count + 1
        assert int(dom.sections["timeline"]["data-drawn"]) == count + 1


def test_hostile_names_are_text(tmp_path, show):
    program = made.cpu_program([(name, name) for name in HOSTILE])
    ops = [{"oc": oc, "start_u": 10 * oc, "dur_u": 9} for oc in range(len(HOSTILE))]
    capture = Capture([made.buffer(program, {(0, 0): ops}, device=1)])
    table = Table("t", "T", (Column("node"),), [(name,) for name in HOSTILE])
    path = page.write(capture, [Report("nodes", "Nodes", HOSTILE, [table])], tmp_path / "page.html")
    # Each node is selected in turn, so its name is in the panel, and its row is searched.
    dom = show(path, f"for (let turn = 0; turn < {len(HOSTILE)}; turn += 1) await after(() => key('n'));")
    assert dom.root["data-faults"] == "0", dom.root.get("data-fault")
    assert [row for row in dom.cells["nodes", "t"] if row] == [[[None, visible(name)]] for name in HOSTILE]
    # The page's own script, whose data is removed, and the driver.
    assert dom.scripts == 2
    assert visible(HOSTILE[-1]) in dom.parts["panel"]
    assert_healthy(show(path))


def test_search_keys_and_choice(tmp_path, show):
    table = Table(
        "t", "T", (Column("node"), Column("n", None, "int")), [(f"/other{row}", row) for row in range(9)]
    )
    table.rows.append(("/layers.0/aiccopytovtcm", 99))
    path = page.write(card(), [Report("nodes", "Nodes", [], [table])], tmp_path / "page.html")
    dom = show(
        path,
        """
        const search = document.querySelector('[data-part="search"]');
        await after(() => { search.value = "COPYTO layers"; search.dispatchEvent(new Event("input")); });
        await after(() => key("n"));
        await after(() => key("n"));
        await after(() => document.querySelectorAll("thead button")[1].click());
        """,
    )
    assert dom.root["data-faults"] == "0"
    # Two cores, five turns, two inferences.
    assert dom.sections["timeline"]["data-hits"] == "20"
    assert dom.parts["hits"].startswith("20 found")
    assert "/layers.0/aiccopytovtcm/__2" in dom.parts["panel"]
    assert "Its row in the tables" in dom.parts["panel"]
    assert [row[1][0] for row in dom.cells["nodes", "t"] if row] == ["99", *map(str, range(8, -1, -1))]


def test_an_interval_is_measured(tmp_path, show):
    capture = Capture(card().buffers[:1])
    dom = show(
        page.write(capture, [], tmp_path / "page.html"),
        """
        rows.setPointerCapture = () => {};
        const box = () => rows.getBoundingClientRect();
        const event = (type, x) => rows.dispatchEvent(new PointerEvent(type, {
          pointerId: 1, clientX: box().left + x, clientY: box().top + 60, shiftKey: true, bubbles: true }));
        await after(() => key("Home"));
        await after(() => event("pointerdown", 185));
        await after(() => event("pointermove", rows.clientWidth - 1));
        await after(() => event("pointerup", rows.clientWidth - 1));
        """,
    )
    assert dom.root["data-faults"] == "0"
    times = sum(int(op["dur_u"]) for op in capture.buffers[0].ops)
    shown = dict(re.findall(r"(elementadd|aicconvolutiond32|aiccopytovtcm)([\d.,]+) us", dom.parts["panel"]))
    assert "operations60" in re.sub(r"\s", "", dom.parts["panel"])
    total = sum(float(text.replace(",", "")) for text in shown.values())
    assert np.isclose(total, times, rtol=0.02) or "ms" in dom.parts["panel"]


def view(dom):
    return float(dom.sections["timeline"]["data-from"]), float(dom.sections["timeline"]["data-to"])


# Positions are those of the drawing at the time of the event: a new scroll bar moves and narrows the rows.
HANDS = """
    rows.setPointerCapture = () => {};
    const box = () => rows.getBoundingClientRect();
    const middle = () => 184 + (rows.querySelector('[data-part="canvas"]').offsetWidth - 184) / 2;
    const wheel = (y, more = {}) => rows.dispatchEvent(new WheelEvent("wheel", {
      clientX: box().left + middle(), clientY: box().top + 60, deltaY: y, cancelable: true, ...more }));
    const touch = (type, id, x) => rows.dispatchEvent(new PointerEvent(type, {
      pointerId: id, pointerType: "touch", clientX: box().left + x, clientY: box().top + 60,
      bubbles: true }));
"""


def test_the_wheel_zooms_where_it_points_once_it_is_the_timelines(tmp_path, show):
    path = page.write(Capture(card().buffers[:1]), [], tmp_path / "page.html")
    begin, end = view(show(path))
    idle = show(path, HANDS + "await after(() => wheel(-60));")
    assert view(idle) == (begin, end)
    low, high = view(show(path, HANDS + "await after(() => wheel(-60, { ctrlKey: true }));"))
    assert begin < low < high < end
    assert (low + high) / 2 == pytest.approx((begin + end) / 2, rel=1e-3)
    # Zooms to both limits and back: never narrower than the minimum, never wider than the whole.
    narrow = view(
        show(
            path, HANDS + "rows.focus(); for (let i = 0; i < 200; i += 1) wheel(-60); await after(() => {});"
        )
    )
    assert narrow[1] - narrow[0] == pytest.approx(20, abs=0.2)
    wide = view(
        show(
            path,
            HANDS + "rows.focus(); for (let i = 0; i < 20; i += 1) wheel(-60);"
            "for (let i = 0; i < 90; i += 1) wheel(60); await after(() => {});",
        )
    )
    assert wide == pytest.approx((begin, end))


def test_two_fingers_zoom_and_one_moves(tmp_path, show):
    path = page.write(Capture(card().buffers[:1]), [], tmp_path / "page.html")
    begin, end = view(show(path))
    pinch = (
        'touch("pointerdown", 1, 500); touch("pointerdown", 2, 600);'
        'for (let x = 600; x <= 900; x += 20) touch("pointermove", 2, x);'
        'touch("pointerup", 2, 900); touch("pointerup", 1, 500);'
    )
    low, high = view(show(path, HANDS + f"await after(() => {{ {pinch} }});"))
    assert (end - begin) / (high - low) == pytest.approx(4, rel=0.05)
    drag = (
        'touch("pointerdown", 1, 500);'
        'for (let x = 500; x >= 400; x -= 10) touch("pointermove", 1, x); touch("pointerup", 1, 400);'
    )
    moved = view(show(path, HANDS + f"await after(() => {{ {pinch} {drag} }});"))
    assert moved[0] > low
    assert moved[1] - moved[0] == pytest.approx(high - low)


def test_each_node_of_a_fused_operation_leads_to_it_and_keeps_the_choice(tmp_path, show):
    program = made.Program()
    program.op(0, "fused", "FusedConv", nodes=["/a/Conv", "/a/Relu"])
    op = {"oc": 0, "start_u": 100, "dur_u": 10, "flags": 64}
    buffer = made.buffer(program, {(0, 0): [op]}, span=(90, 140), device=1)
    # The result has the name of its node, like a node without a name.
    boxes = [DrawnNode("/a/Conv", "Conv"), DrawnNode("/a/Relu", "Relu"), DrawnNode("/a/Relu", "output")]
    graph = DrawnGraph(boxes, [(0, 1, "v"), (1, 2, "w")], [Coloring("time", amounts=[10.0, 10.0, 0.0])])
    capture = Capture([buffer])
    path = page.write(capture, [REPORTS["nodes"](capture)], tmp_path / "page.html", graphs=[graph])
    dom = show(
        path,
        """
        const drawn = document.querySelector("#graph");
        const area = drawn.querySelector('[data-part="area"]');
        const press = { key: "ArrowDown", cancelable: true };
        const down = () => area.dispatchEvent(new KeyboardEvent("keydown", press));
        const panel = document.querySelector('#timeline [data-part="panel"]');
        const seen = document.documentElement.dataset;
        down();
        await after(() => {});
        seen.first = `${drawn.dataset.chosen} ${panel.querySelector("dd").textContent}`;
        down(); down();
        await after(() => {});
        seen.last = [...drawn.querySelectorAll("dd")].map((fact) => fact.textContent).join();
        """,
    )
    assert_healthy(dom)
    assert dom.root["data-first"] == "/a/Conv fused/__0"
    # The time of the output, not the time of the node.
    assert dom.root["data-last"].startswith("0 us, 0.0 %,/a/Relu ")


def test_a_choice_in_graph_or_timeline_is_marked_in_the_other(tmp_path, show):
    names = [("/a/Conv", "Conv"), ("/b/Relu", "Relu"), ("/b/Relu_1", "Relu")]
    ops = [{"oc": at, "start_u": 100 + 10 * at, "dur_u": 10, "flags": 64} for at in range(3)]
    buffer = made.buffer(made.cpu_program(names), {(0, 0): ops}, span=(90, 140), device=1)
    graph = DrawnGraph(
        [DrawnNode(name, kind) for name, kind in names],
        [(0, 1, "v"), (1, 2, "w")],
        [Coloring("time", amounts=[10.0, 10.0, 10.0])],
    )
    capture = Capture([buffer])
    path = page.write(capture, [REPORTS["nodes"](capture)], tmp_path / "page.html", graphs=[graph])
    dom = show(
        path,
        """
        const drawn = document.querySelector("#graph");
        const area = drawn.querySelector('[data-part="area"]');
        const press = { key: "ArrowDown", cancelable: true };
        const down = () => area.dispatchEvent(new KeyboardEvent("keydown", press));
        const panel = document.querySelector('#timeline [data-part="panel"]');
        const seen = document.documentElement.dataset;
        down(); down();
        await after(() => {});
        seen.first = `${drawn.dataset.chosen} ${panel.querySelector("dd").textContent}`;
        const found = document.querySelectorAll("tr.found td:first-child");
        seen.rows = [...found].map((cell) => cell.textContent).join();
        const search = document.querySelector('#timeline [data-part="search"]');
        search.value = "relu_1";
        search.dispatchEvent(new Event("input"));
        key("n");
        await after(() => {});
        seen.second = drawn.dataset.chosen;
        """,
    )
    assert_healthy(dom)
    assert dom.root["data-first"] == "/b/Relu /b/Relu/__1"
    assert dom.root["data-rows"] == "/b/Relu"
    assert dom.root["data-second"] == "/b/Relu_1"
