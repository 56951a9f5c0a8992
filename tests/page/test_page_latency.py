"""Pictures of latencies: their figures compared with numpy, and the content of each kind of picture."""

import itertools
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qaic import page
from qaic.errors import InputError, OptionError, StateError
from qaic.page.latency import Distribution, curve, histogram, latency_text
from qaic.page.latency_page import curve_note, curve_svg, histogram_svg, latency_page, percentiles_svg

latencies = st.lists(st.floats(0, 1e4, allow_subnormal=False), min_size=1, max_size=300)
# Typical latencies: many similar values, and a few outliers.
skewed = st.tuples(
    st.lists(st.floats(1e-4, 3e-4), min_size=1, max_size=300), st.lists(st.floats(1e-2, 5), max_size=3)
).map(lambda parts: parts[0] + parts[1])


@given(latencies)
def test_figures_are_those_of_numpy(seconds):
    found = Distribution.of(seconds)
    assert (found.count, found.minimum, found.maximum) == (len(seconds), min(seconds), max(seconds))
    assert found.mean == pytest.approx(np.mean(seconds))
    assert found.percentiles["P99.9"] == np.percentile(seconds, 99.9)
    ordered = [value for name, value in found.rows() if name != "mean"]
    assert all(a <= b or a == pytest.approx(b) for a, b in pairwise(ordered))


@pytest.mark.parametrize("seconds", [[], [-1.0], [1.0, float("nan")], [float("inf")]])
def test_what_is_no_latency_is_refused(seconds):
    with pytest.raises(InputError):
        Distribution.of(seconds)


@given(st.one_of(latencies, skewed), st.integers(1, 60))
def test_a_histogram_counts_each_latency_once(seconds, bins):
    values = np.array(seconds)
    found = histogram(values, bins)
    assert found.counts.sum() + found.above == len(values)
    assert len(found.counts) <= bins + 1
    assert found.edges[0] <= values.min() * (1 + 1e-9)
    width = found.edges[1] - found.edges[0]
    # A value on an edge can be counted on either side.
    if found.above == 0:
        assert values.max() <= found.edges[-1] * (1 + 1e-9) + 1e-300
    for place, count in enumerate(found.counts):
        low, high = found.edges[place], found.edges[place + 1]
        surely = np.count_nonzero((values > low + width * 1e-6) & (values < high - width * 1e-6))
        perhaps = np.count_nonzero((values >= low - width * 1e-6) & (values <= high + width * 1e-6))
        assert surely <= count <= perhaps


def test_a_few_slow_ones_do_not_squeeze_the_rest():
    values = np.concatenate([np.linspace(1e-3, 2e-3, 500), [0.5, 0.9]])
    found = histogram(values, 20)
    assert found.above == 2
    assert np.count_nonzero(found.counts) > 8


@given(latencies, st.integers(1, 40))
def test_curve_keeps_extremes(seconds, columns):
    values = np.array(seconds)
    found = curve(values, columns)
    assert len(found.first) == min(columns, len(values))
    assert (found.minimum.min(), found.maximum.max()) == (values.min(), values.max())
    bounds = [*found.first, len(values)]
    for place, (low, high) in enumerate(pairwise(bounds)):
        assert found.middle[place] == pytest.approx(np.median(values[low:high]))


@given(st.one_of(latencies, skewed))
def test_charts_are_well_formed_and_inside_their_frame(seconds):
    found = Distribution.of(seconds)
    for chart in (histogram_svg(found), percentiles_svg(found), curve_svg(found)):
        root = ET.fromstring(chart)
        for element in root.iter():
            for name, limit in (
                ("x", 1000),
                ("cx", 1000),
                ("x1", 1000),
                ("y", 250),
                ("cy", 250),
                ("y1", 250),
            ):
                if name in element.attrib:
                    assert -1 <= float(element.attrib[name]) <= limit + 1


@given(skewed)
def test_bars_of_the_chart_tell_the_counts(seconds):
    found = Distribution.of(seconds)
    bars = histogram(found.seconds, 48)
    shown = [int(count) for count in re.findall(r": (\d+) \(", histogram_svg(found))]
    assert shown == [count for count in [*bars.counts.tolist(), bars.above] if count]


#: largest size of the font in units of a chart, and the width of a character of that size
FONT = 26
CHARACTER = 0.6 * FONT


def boxes(chart):
    """Return text, left, right, top and bottom of each label of a chart in the largest font."""
    found = []
    for element in ET.fromstring(chart).iter():
        if element.tag == "text":
            x, width = float(element.attrib["x"]), CHARACTER * len(element.text)
            left = x - {"start": 0, "middle": width / 2, "end": width}[element.attrib["text-anchor"]]
            base = float(element.attrib["y"]) + float(element.attrib["dy"].removesuffix("em")) * FONT
            found.append((element.text, left, left + width, base - 0.75 * FONT, base + 0.2 * FONT))
    return found


@given(st.one_of(latencies, skewed))
def test_labels_do_not_overlap_on_the_narrowest_screen(seconds):
    """Regression: the percentiles of one inference were written over each other."""
    found = Distribution.of(seconds)
    for chart in (histogram_svg(found), percentiles_svg(found), curve_svg(found)):
        for one, two in itertools.combinations(boxes(chart), 2):
            is_apart = one[2] <= two[1] or two[2] <= one[1] or one[4] <= two[3] or two[4] <= one[3]
            assert is_apart, (one, two)


@given(st.one_of(latencies, skewed))
def test_names_of_percentiles_are_above_the_bars(seconds):
    chart = histogram_svg(Distribution.of(seconds))
    named = [box for box in boxes(chart) if box[0].startswith("P")]
    assert "P50" in " ".join(box[0] for box in named)
    tops = [
        float(element.attrib["y"])
        for element in ET.fromstring(chart).iter()
        if element.get("class") == "fill"
    ]
    assert all(bottom < min(tops) and left >= 0 and right <= 1000 for _, left, right, _, bottom in named)


def test_one_inference_has_a_sentence_and_no_charts():
    text = latency_page({"": Distribution.of([0.023], what="inference")}, title="one")
    assert "The inference took 23.0 ms." in text
    assert "<svg" not in text


def test_text_is_as_wide_as_asked_and_shows_every_bar():
    rng = np.random.default_rng(3)
    seconds = np.concatenate([rng.gamma(9, 1.2e-5, 4000) + 1e-4, [0.1]])
    found = Distribution.of(seconds)
    text = latency_text(found, width=72)
    lines = text.splitlines()
    assert lines[0] == "Latency of 4,001 runs"
    assert max(map(len, lines)) <= 72
    assert re.search(rf"P50 +{np.percentile(seconds, 50) * 1e6:.0f} us\n", text)
    bars = [line for line in lines if "#" in line]
    assert sum(int(re.search(r"us\s+(\d+)  #", line)[1]) for line in bars) == 4001
    assert "more than" in bars[-1]
    assert text.isascii()


def test_one_run_is_one_bar():
    assert re.search(r" 1  #+$", latency_text(Distribution.of([0.5])))
    assert "Latency of 1 run\n" in latency_text(Distribution.of([0.5]))


METRICS = {
    "num_of_inferences": 99, "min_latency": 0.001, "max_latency": 0.9, "avg_latency": 0.003, "P25": 0.0011,
    "P50": 0.0012, "P75": 0.0013, "P90": 0.002, "P99": 0.01, "P999": 0.8, "total_inference_time": 0.3,
}  # fmt: skip


def test_metrics_alone_give_figures_and_percentiles():
    found = Distribution.of_metrics(METRICS)
    assert found.text(found.percentiles["P99.9"]) == "800 ms"
    assert "#" not in latency_text(found)
    text = latency_page({"": found}, title="m")
    assert text.count("<svg") == 1
    assert "<dd>99</dd>" in text


@pytest.mark.parametrize(
    "change", [{"P50": None}, {"avg_latency": "1"}, {"max_latency": float("inf")}, {"P25": True}]
)
def test_metrics_that_are_none_are_refused(change):
    with pytest.raises(InputError, match=next(iter(change))):
        Distribution.of_metrics({**METRICS, **change})


def test_a_page_of_latencies_holds_the_figures(tmp_path):
    seconds = np.linspace(1e-3, 2e-3, 1001)
    target = page.write_latency(seconds, tmp_path / "l.html", title="a <b>", what="inference")
    text = target.read_text()
    assert "<h1>a &lt;b&gt;</h1>" in text
    assert "Latency of 1,001 inferences" in text
    assert "<dt>P50</dt><dd>1.50 <small>ms</small></dd>" in text
    assert text.count("<svg") == 3
    assert [path.name for path in tmp_path.iterdir()] == ["l.html"]


def test_slow_samples_beyond_the_chart_are_counted():
    found = Distribution.of([1e-3] * 999 + [5.0])
    assert "Slower runs (1) are drawn at the top; the slowest took 5.00 s" in curve_note(found)
    assert curve_note(Distribution.of([1e-3] * 9)) == ""


def test_pictures_are_html_or_png(tmp_path):
    with pytest.raises(OptionError, match=r"\.html or \.png, not in '\.gif'"):
        page.write_latency([1.0], tmp_path / "l.gif")
    assert not list(tmp_path.iterdir())


def test_png(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    for name, seconds in (
        ("one", [0.1]),
        ("many", np.linspace(1e-3, 2e-3, 5000)),
        ("slow", [1e-3] * 500 + [9.0]),
    ):
        target = page.write_latency(seconds, tmp_path / f"{name}.png", title="$x^2_ \u540d")
        assert target.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        assert target.stat().st_size > 5000


def test_without_matplotlib_the_message_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(StateError, match=r"pip install 'openqaic\[plot\]'"):
        page.write_latency([1.0], tmp_path / "l.png")
    assert not list(tmp_path.iterdir())


def test_matplotlib_is_imported_for_png_alone(tmp_path):
    program = (
        "import sys; from qaic import page; page.write_latency([1.0], sys.argv[1]); "
        "sys.exit(any(name.split('.')[0] == 'matplotlib' for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "l.html")], check=True)
