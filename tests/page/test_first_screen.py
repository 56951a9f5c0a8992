"""First screen of the page: advice, and bars of the most expensive and the changed nodes."""

import re

import pytest

import stats_captures as made
from page_captures import HOSTILE, one_op
from qaic import __version__
from qaic.page.bars import changed_nodes, costliest_nodes
from qaic.page.kind_colors import PALETTE
from qaic.page.timeline.capture_page import capture_page
from qaic.stats.reports import REPORTS, Capture, diff
from qaic.support.text import escape_html as escape
from qaic.support.text import shortened


def capture(*nodes):
    """Each node is (name, kind, microseconds)."""
    program = made.cpu_program([(name, kind) for name, kind, _ in nodes])
    ops, start = [], 100
    for number, (_, _, time) in enumerate(nodes):
        ops.append({"oc": number, "start_u": start, "dur_u": time, "flags": 64})
        start += time
    return Capture([made.buffer(program, {(0, 0): ops}, span=(90, start + 10), device=1)] * 3)


def bars(text):
    """Return name, widths and description of each bar."""
    rows = re.findall(
        r'<li><span class="name" title="(.*?)">.*?</span>(<svg.*?</svg>)<span>(.*?)</span></li>', text
    )
    return [
        (name, [float(width) for width in re.findall(r'width="([0-9.]+)"', svg)], re.sub("<.*?>", "", said))
        for name, svg, said in rows
    ]


def test_bars_are_the_ten_costliest_nodes_in_order():
    found = bars(costliest_nodes(capture(*[(f"/n{size}/Conv", "Conv", 10 * size) for size in range(1, 13)])))
    assert [name for name, _, _ in found] == [f"/n{size}/Conv" for size in range(12, 2, -1)]
    for (_, (width,), said), size in zip(found, range(12, 2, -1), strict=True):
        assert width == pytest.approx(100 * size / 12, abs=0.01)
        assert said.endswith(f"{100 * size / 78:.1f} % Conv")


def test_bars_have_the_colors_of_the_timeline():
    text = costliest_nodes(capture(("/a/Conv", "Conv", 9), ("/b/Relu", "Relu", 5)))
    assert re.findall(r'fill="(#\w+)"', text) == [PALETTE[0], PALETTE[4]]
    page = capture_page(one_op(), [])
    assert page.count('const PALETTE = ["#7fb2e5",') == 1


@pytest.mark.parametrize("name", [*HOSTILE, "/model/layers.0/" + "very_long_" * 12 + "/MatMul"])
def test_names_are_whole_on_hover_and_no_markup(name):
    text = costliest_nodes(capture((name, "Gemm", 10)))
    node = str(REPORTS["nodes"](capture((name, "Gemm", 10))).tables[0].rows[0][0])
    assert f'title="{escape(node)}"' in text
    assert "<script" not in text
    assert "<img" not in text


def test_a_comparison_draws_both():
    before = capture(("/a/Conv", "Conv", 100), ("/b/Conv", "Conv", 50))
    after = capture(("/a/Conv", "Conv", 200), ("/b/Conv", "Conv", 40))
    report = diff(before, after)
    assert bars(changed_nodes(report.table("nodes"))) == [
        ("/a/Conv", [50.0, 100.0], "100 us \u2192 200 us (+100 %)"),
        ("/b/Conv", [25.0, 20.0], "50.0 us \u2192 40.0 us (-20 %)"),
    ]
    page = capture_page(after, [REPORTS["overview"](after), report])
    assert re.findall('<section id="([a-z]+)"', page)[:3] == ["diff", "overview", "timeline"]


def hazards(found):
    return REPORTS["overview"](found).table("advice").rows


@pytest.mark.parametrize(
    ("nodes", "hazard", "reason"),
    [
        ([("/a", "Transpose", 60), ("/b", "Conv", 40)], "60 % of the work converts", "Transpose 60.0 us"),
        ([("/a", "Conv", 70), ("/b", "Conv", 10), ("/c", "Conv", 20)], "one node takes 70 %", "/a: 70.0 us"),
    ],
)
def test_rules_name_hazard_reason_and_remedy(nodes, hazard, reason):
    (row,) = [row for row in hazards(capture(*nodes)) if row[0].startswith(hazard)]
    assert row[1] == reason
    assert row[2]
    page = capture_page(capture(*nodes), [REPORTS["overview"](capture(*nodes))])
    first, *_ = page.partition("Key figures")
    assert escape(row[2]) in first


def test_nothing_is_advised_where_nothing_stands_out():
    nodes = [(f"/n{number}", "Conv", 20) for number in range(6)]
    assert hazards(capture(*nodes)) == []


def test_operations_that_were_not_measured_are_said():
    program = made.cpu_program([("/a", "Conv")])
    (row,) = hazards(Capture([made.buffer(program, {(0, 0): []}, span=(0, 100), device=1)]))
    assert row[2] == "compile with stats_level=70, which measures operations"


def test_long_names_in_tables_lose_their_middle_and_are_whole_on_hover():
    name = "/model/" + "/".join(f"layers.{number}" for number in range(20)) + "/MatMul"
    found = capture((name, "Gemm", 10), ("/short", "Gemm", 5))
    page = capture_page(found, [REPORTS["nodes"](found)])
    short = shortened(name, 72)
    assert f'title="{name}" data-v="{name}">{short}</td>' in page
    assert '<td class="t long">/short</td>' in page


def test_the_title_names_the_model_and_the_device():
    found = capture(("/a", "Conv", 10))
    (network,) = {reading.facts.network for reading in found.each()}
    assert f"<h1>{network or 'Measurements'} on the CPU device</h1>" in capture_page(found, [])


@pytest.mark.parametrize("samples", [1, 4])
def test_the_page_states_how_many_samples_an_inference_has_if_an_option_set_it(samples):
    program = made.cpu_program([("/a", "Conv")])
    ops = [{"oc": 0, "start_u": 100, "dur_u": 10, "flags": 64}]
    buffer = made.buffer(program, {(0, 0): ops}, span=(90, 120), device=1, batch_size=samples)
    stated = re.findall(r"\d+ samples per inference|batch \d+", capture_page(Capture([buffer]), []))
    assert stated == ([] if samples == 1 else ["4 samples per inference"])


def rounded(*nodes):
    """Each node is (path, kind, microseconds, microseconds of its rounding)."""
    return capture(
        *(part for path, kind, own, cast in nodes for part in ((path, kind, own), (path, "Cast", cast)))
    )


def test_casts_that_round_results_belong_to_their_nodes():
    """Regression: in float16, most nodes were named Cast."""
    found = rounded(
        ("/m", "MatMul", 10, 40), ("/s", "Mul", 4, 30), ("/t", "Transpose", 3, 5), ("/c", "Cast", 8, 1)
    )
    assert [(name, said.split()[-1]) for name, _, said in bars(costliest_nodes(found))] == [
        ("/m", "MatMul"),
        ("/s", "Mul"),
        ("/c", "Cast"),
        ("/t", "Transpose"),
    ]
    (verdict,) = REPORTS["ops"](found).verdict
    assert verdict == (
        "Cast takes 83.2 % of the 101 us that operations took; it converts operands and results of "
        "MatMul 40.0 us, Mul 30.0 us, Transpose 5.00 us"
    )
    (verdict,) = REPORTS["ops"](capture(("/m", "MatMul", 10), ("/c", "Cast", 4))).verdict
    assert verdict == "MatMul takes 71.4 % of the 14.0 us that operations took"


@pytest.mark.parametrize(
    ("producer", "said"), [("openqaic", ""), ("", ""), ("a card", "; measured by a card")]
)
def test_the_foot_names_another_program_that_measured(producer, said):
    program = made.cpu_program([("/a", "Conv")])
    executions = {(0, 0): [{"oc": 0, "start_u": 0, "dur_u": 5, "flags": 64}]}
    found = Capture([made.buffer(program, executions, meta={"producer": producer}, device=1)])
    foot = capture_page(found, []).partition("<footer>")[2]
    assert foot.startswith(f"Written by openqaic {__version__}{said}. This file")
