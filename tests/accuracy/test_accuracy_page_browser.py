"""The page of a comparison in a browser: it fits windows of every width, and its tables match the rows."""

import json

import pytest

import accuracy_models as models
from browser import NEEDS_BROWSER, assert_healthy, opener
from qaic import accuracy

pytestmark = NEEDS_BROWSER


@pytest.fixture(scope="module")
def show(tmp_path_factory):
    with opener(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def report():
    """A transformer with two faults; its names are as long as those of exporters."""
    model, samples, _, _ = models.planted_transformer(["overflow", "cancellation"])
    for node in model.graph.node:
        for names in (node.input, node.output):
            for at, name in enumerate(names):
                if name[-1].isdigit() and len(name) > 2:
                    names[at] = f"model_with_a_long_name/layers.{name[-1]}/self_attention_block/{name}_output"
    model.graph.output[0].name = model.graph.node[-1].output[0]
    return accuracy.compare(model, to="fp16,mxfp6", samples=samples)


@pytest.mark.parametrize("width", [500, 1280])
def test_it_fits_the_window(report, tmp_path, show, width):
    """The widest element is measured in a frame of this width, because a window cannot be this narrow."""
    page = report.page(tmp_path / "page.html")
    drive = f"""
    document.body.style.width = "{width}px";
    const wide = [...document.querySelectorAll("section > *, .verdict li, figcaption")].filter(
      (item) => item.scrollWidth > item.clientWidth + 1 && !item.matches(".scroll, .scroll *"));
    document.documentElement.dataset.wide = wide.map((item) => item.className || item.tagName).join(" ");
    """
    dom = show(page, drive)
    assert_healthy(dom)
    assert dom.root["data-wide"] == ""


@pytest.mark.parametrize("width", [500, 1280, 1400, 2200])
def test_labels_of_charts_have_one_size_at_every_width(report, tmp_path, show, width):
    """Regression: labels grew with the chart, so some were tiny and others larger than titles."""
    drive = f"""
    document.body.style.width = "{width}px";
    const sizes = [...document.querySelectorAll("figure text")].map((label) => {{
      const chart = label.closest("svg");
      return parseFloat(getComputedStyle(label).fontSize) * chart.clientWidth / chart.viewBox.baseVal.width;
    }});
    document.documentElement.dataset.sizes = JSON.stringify([Math.min(...sizes), Math.max(...sizes)]);
    """
    dom = show(report.page(tmp_path / "page.html"), drive, width)
    assert_healthy(dom)
    least, most = json.loads(dom.root["data-sizes"])
    assert 11.5 < least <= most < 12.5


def test_tables_hold_the_numbers_of_the_rows(report, tmp_path, show):
    dom = show(report.page(tmp_path / "page.html"))
    assert_healthy(dom)
    for number, item in enumerate(report.precisions):
        cells = [row for row in dom.cells[f"nodes-{number}", "nodes"] if row]
        assert [row[0][0] or row[0][1] for row in cells] == [str(name) for name in item.nodes["name"]]
        # A column without reasons is omitted.
        if (item.nodes["reason"] != "none").any():
            reasons = ["N/A" if reason == "none" else reason for reason in item.nodes["reason"]]
            assert [row[1][1] for row in cells] == reasons
        worst = [row for row in dom.cells.get(("values", f"worst-{item.to}"), []) if row]
        assert [row[0][0] or row[0][1] for row in worst] == [
            str(item.nodes["name"][at]) for at in item.worst(10)
        ]
