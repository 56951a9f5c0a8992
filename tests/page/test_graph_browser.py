"""The graph in a browser: large graphs open as closed groups, with search, colors and opening; names are
text.
"""

import json

import pytest

from browser import NEEDS_BROWSER, assert_healthy, opener
from page_captures import HOSTILE
from qaic.page.graph import Coloring, DrawnGraph, DrawnNode, graph_page

pytestmark = NEEDS_BROWSER

PART = """const part = (name) => document.querySelector(`#graph [data-part="${name}"]`);
const press = (key) => part("area").dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
"""


@pytest.fixture(scope="module")
def show(tmp_path_factory):
    with opener(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def chain(count, name=lambda place: f"/model/layers.{place // 8}/part.{place % 8 // 4}/op{place}"):
    """Draw a chain in which every fourth node also reads the node four positions before it."""
    nodes = [
        DrawnNode(name(place), "MatMul" if place % 2 else "Add", [("shape", "2x8")]) for place in range(count)
    ]
    edges = [(place, place + 1, f"v{place}") for place in range(count - 1)]
    edges += [(place, place + 4, f"v{place}") for place in range(0, count - 4, 4)]
    precisions = ["float16" if place % 3 else "float32" for place in range(count)]
    times = [None if place % 5 == 0 else float(place) for place in range(count)]
    return DrawnGraph(nodes, edges, [Coloring("precision", precisions), Coloring("time", amounts=times)])


def write(graph, path):
    path.write_text(graph_page(graph, title="model", subtitle="", parts=[]))
    return path


def facts(dom):
    return dom.sections["graph"]


def test_a_small_graph_shows_every_node(tmp_path, show):
    dom = show(write(chain(30), tmp_path / "page.html"))
    assert_healthy(dom)
    assert facts(dom)["data-state"] == "drawn"
    assert int(facts(dom)["data-boxes"]) == 30
    assert int(facts(dom)["data-drawn"]) > 0


@pytest.mark.parametrize("count", [10, 14])
def test_a_graph_that_nearly_fits_is_shown_whole(tmp_path, show, count):
    """Regression: the last node was cut."""
    path = write(chain(count), tmp_path / "page.html")
    dom = show(path, f"{PART} document.documentElement.dataset.area = part('area').clientHeight;")
    assert_healthy(dom)
    # Nodes are 40 high, with 34 between them and 20 around them.
    height = 74 * count - 34 + 40
    assert float(facts(dom)["data-scale"]) * height <= int(dom.root["data-area"]) + 1


def test_a_graph_that_is_wider_than_its_area_begins_at_its_edge(tmp_path, show):
    nodes = [DrawnNode(f"n{place}", "Add", []) for place in range(40)] + [DrawnNode("sum", "Sum", [])]
    edges = [(place, 40, f"v{place}") for place in range(40)]
    wide = DrawnGraph(nodes, edges, [Coloring("precision", ["float32"] * 41)])
    dom = show(write(wide, tmp_path / "page.html"))
    assert_healthy(dom)
    assert facts(dom)["data-scale"] == "0.700"
    # Eight to nine boxes have the width of the area; with the first box in the middle, half of it would be
    # empty.
    assert int(facts(dom)["data-drawn"]) >= 8


def test_nine_thousand_nodes_open_closed_and_can_all_be_shown(tmp_path, show):
    path = write(chain(9000), tmp_path / "page.html")
    dom = show(path)
    assert_healthy(dom)
    assert int(facts(dom)["data-boxes"]) <= 160
    opened = show(path, f'{PART} part("open").click(); part("all").click();')
    assert int(facts(opened)["data-boxes"]) == 9000
    assert int(facts(opened)["data-drawn"]) == 9000
    assert opened.root["data-faults"] == "0"


def test_a_search_opens_the_groups_around_what_it_finds(tmp_path, show):
    dom = show(
        write(chain(2000), tmp_path / "page.html"),
        f"""{PART} part("search").value = "op1234"; part("search").dispatchEvent(new Event("input"));
        part("search").dispatchEvent(new KeyboardEvent("keydown", {{ key: "Enter" }}));""",
    )
    assert facts(dom)["data-hits"] == "1"
    assert facts(dom)["data-chosen"].endswith("/op1234")
    assert "v1233" not in dom.parts["panel"]
    assert "op1233" in dom.parts["panel"]
    assert "2x8" in dom.parts["panel"]


def test_keys_walk_along_arrows_and_close_groups(tmp_path, show):
    path = write(chain(30), tmp_path / "page.html")
    walked = show(
        path, f'{PART} for (const key of ["ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"]) press(key);'
    )
    assert facts(walked)["data-chosen"].endswith("/op1")
    closed = show(path, f'{PART} press("ArrowDown"); press("Backspace");')
    assert int(facts(closed)["data-boxes"]) == 27
    again = show(path, f'{PART} press("ArrowDown"); press("Backspace"); press("Enter");')
    assert int(facts(again)["data-boxes"]) == 30


def test_colors_by_time_name_what_was_not_measured(tmp_path, show):
    dom = show(
        write(chain(30), tmp_path / "page.html"),
        f'{PART} part("coloring").value = "1"; part("coloring").dispatchEvent(new Event("change"));',
    )
    assert facts(dom)["data-coloring"] == "time"
    assert "not measured by itself" in dom.parts["legend"]


def test_colors_that_are_given_have_their_order_in_the_legend(tmp_path, show):
    colors = {"bad": "#e25f4c", "fair": "#f5a765", "good": "#cfe8d5"}
    nodes = [DrawnNode(f"n{place}", "Add") for place in range(4)]
    coloring = Coloring("error", ["good", "good", "bad", "good"], colors=colors)
    dom = show(write(DrawnGraph(nodes, [], [coloring]), tmp_path / "page.html"))
    assert_healthy(dom)
    assert "".join(dom.parts["legend"].split()) == "bad1good3"


def test_names_are_text_whatever_is_in_them(tmp_path, show):
    names = [*HOSTILE, "</script><script>alert(1)</script>", "\u202e/x", "a/" * 1000]
    nodes = [DrawnNode(name, name, [(name, name)]) for name in names]
    edges = [(place, place + 1, name) for place, name in enumerate(names[:-1])]
    graph = DrawnGraph(nodes, edges, [Coloring("precision", names)], [names[0]])
    path = write(graph, tmp_path / "page.html")
    scripts = show(write(chain(3), tmp_path / "plain.html")).scripts
    dom = show(path)
    assert_healthy(dom)
    assert dom.scripts == scripts
    chosen = show(path, f'{PART} press("ArrowDown"); press("ArrowDown");')
    assert chosen.root["data-faults"] == "0"


@pytest.mark.parametrize(
    "edges", [[(1, 0, "back")], [(0, 0, "self")], [(0, 1, "a"), (1, 0, "b"), (0, 1, "c")], []]
)
def test_arrows_that_point_back_are_drawn_too(tmp_path, show, edges):
    nodes = [DrawnNode("x", "input"), DrawnNode("y", "Add")]
    dom = show(write(DrawnGraph(nodes, edges, [Coloring("precision", ["float32", ""])]), tmp_path / "p.html"))
    assert_healthy(dom)
    assert json.loads(facts(dom)["data-boxes"]) == 2


def test_a_graph_of_nothing_is_no_fault(tmp_path, show):
    dom = show(write(DrawnGraph([], [], [Coloring("precision", [])]), tmp_path / "p.html"))
    assert_healthy(dom)
