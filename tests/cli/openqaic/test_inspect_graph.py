"""`openqaic inspect MODEL graph`: all nodes and arrows of a program, times, and the contents of cards'
containers.
"""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import qaic
import session_models
import stats_captures
from page_captures import carried_graph
from qaic.cli.graph_model import read_graph
from qaic.cli.openqaic import main, program_graph
from qaic.cli.openqaic.drawn_card import drawn_card
from qaic.cli.openqaic.drawn_program import drawn_program, node_times
from qaic.stats.reports import REPORTS, Capture
from session_models import affine, save

QPCS = Path(__file__).parents[2] / "data" / "qpc"
UNARY = ("Relu", "Tanh", "Sqrt", "Sigmoid")


def random_model(choices):
    """Build a graph in which each node reads one or two earlier values; values that no node reads are
    outputs.
    """
    values, nodes, read = ["x"], [], set()
    for place, (operator, one, other) in enumerate(choices):
        picked = [values[one % len(values)]]
        if operator == "Add":
            picked.append(values[other % len(values)])
        read.update(picked)
        nodes.append(helper.make_node(operator, picked, [f"v{place}"], name=f"/part{place % 3}/n{place}"))
        values.append(f"v{place}")
    outputs = [value for value in values[1:] if value not in read]
    return session_models.model(
        nodes, [("x", TensorProto.FLOAT, [2, 4])], [(name, TensorProto.FLOAT, [2, 4]) for name in outputs]
    )


def dense():
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="/blk/mm"),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("Softmax", ["b"], ["y"], name="/blk/sm"),
    ]
    value = {"elem_type": TensorProto.FLOAT, "shape": [2, 4]}
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("x", **value)],
        [helper.make_tensor_value_info("y", **value)],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_nodes_that_hold_a_constant_are_facts_of_their_readers():
    made = dense()
    (weight,) = made.graph.initializer
    made.graph.ClearField("initializer")
    made.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=weight, name="const"))
    drawn = drawn_program(program_graph.with_shapes(made))
    assert [node.kind for node in drawn.nodes] == ["input", "MatMul", "Tanh", "Softmax", "output"]
    assert ("constant", "w, float32 4x4") in [
        (name, text.partition(":")[0]) for name, text in drawn.nodes[1].facts
    ]
    assert [row["operator"] for row in program_graph.nodes(made)] == ["MatMul", "Tanh", "Softmax"]


@pytest.fixture
def model(tmp_path):
    onnx.save(dense(), tmp_path / "dense.onnx")
    return tmp_path / "dense.onnx"


CHOICES = st.lists(
    st.tuples(st.sampled_from((*UNARY, "Add")), st.integers(0, 30), st.integers(0, 30)),
    min_size=1,
    max_size=20,
)


@given(choices=CHOICES)
def test_arrows_go_from_the_producer_of_a_value_to_its_readers(choices):
    model = onnx.shape_inference.infer_shapes(random_model(choices))
    drawn = drawn_program(model)
    makers = {"x": "x"} | {name: node.name for node in model.graph.node for name in node.output}
    wanted = {
        (makers[name], node.name, name) for node in model.graph.node for name in node.input if name in makers
    }
    wanted |= {(makers[value.name], value.name, value.name) for value in model.graph.output}
    assert {
        (drawn.nodes[begin].name, drawn.nodes[end].name, value) for begin, end, value in drawn.edges
    } == wanted
    assert all(begin < end for begin, end, _ in drawn.edges)
    assert len(drawn.nodes) == len(model.graph.node) + 1 + len(model.graph.output)


@settings(max_examples=10, deadline=None)
@given(choices=CHOICES)
def test_rounding_is_a_part_of_its_node(tmp_path_factory, choices):
    program = qaic.compile(
        random_model(choices), aic_binary_dir=tmp_path_factory.mktemp("program"), convert_to_fp16=True
    )
    model = program_graph.with_shapes(read_graph(qaic.Qpc(program.path)))
    drawn = drawn_program(model)
    names = [node.name for node in drawn.nodes if node.kind != "Cast"]
    for name in (f"/part{place % 3}/n{place}" for place in range(len(choices))):
        assert names.count(name) == 1
    assert not any("/unrounded" in value for _, _, value in drawn.edges)
    assert all(begin < end for begin, end, _ in drawn.edges)


@settings(max_examples=10, deadline=None)
@given(choices=CHOICES, at=st.integers(0, 19))
def test_a_part_of_a_model_computes_what_the_whole_model_computes(tmp_path_factory, choices, at):
    folder = tmp_path_factory.mktemp("part")
    whole = random_model(choices)
    name = f"v{at % len(choices)}"
    onnx.save(whole, folder / "m.onnx")
    arguments = [str(folder / "m.onnx"), "--output-node-name", name, "--onnx", str(folder / "part.onnx")]
    assert main(["inspect", *arguments]) == 0
    if name not in [value.name for value in whole.graph.output]:
        whole.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]))
    # Without options, the compiler does not change the numbers of a model.
    feeds = {"x": np.random.default_rng(0).random((2, 4), np.float32)}
    reference = onnxruntime.InferenceSession(whole.SerializeToString()).run([name], feeds)[0]
    part = onnxruntime.InferenceSession(folder / "part.onnx")
    assert [value.name for value in part.get_outputs()] == [name]
    np.testing.assert_allclose(part.run(None, feeds)[0], reference, rtol=1e-6)


def test_values_that_a_body_captures_are_arrows():
    body = helper.make_graph(
        [helper.make_node("Neg", ["a"], ["inner"])],
        "body",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [2])],
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="maker"),
        helper.make_node("If", ["c"], ["y"], name="choice", then_branch=body, else_branch=body),
    ]
    graph = helper.make_graph(
        nodes,
        "captures",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    drawn = drawn_program(helper.make_model(graph))
    arrows = {(drawn.nodes[begin].name, drawn.nodes[end].name) for begin, end, _ in drawn.edges}
    assert ("maker", "choice") in arrows
    choice = next(node for node in drawn.nodes if node.name == "choice")
    assert ("then_branch", "a body of 1 node") in choice.facts


def test_the_command_writes_one_page(model, tmp_path, capsys):
    page = tmp_path / "with blank.html"
    assert main(["inspect", str(model), "graph", "-o", str(page), "--convert-to-fp16"]) == 0
    assert capsys.readouterr().out.startswith(f"wrote '{page}', ")
    held = carried_graph(page)
    assert [one["name"] for one in held["colorings"]] == ["precision", "operator"]
    assert "float16" in held["colorings"][0]["values"]
    assert "http" not in page.read_text().replace("http-equiv", "")


def test_the_page_opens_with_the_graph_of_the_model(tmp_path, capsys):
    given = dense()
    # Dimensions of the model have names; dimensions of the program are numbers.
    given.graph.node.insert(0, helper.make_node("Identity", ["x"], ["same"], name="/blk/same"))
    given.graph.node[1].input[0] = "same"
    for value in (*given.graph.input, *given.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(given, tmp_path / "m.onnx")
    page = tmp_path / "graph.html"
    options = ["--onnx-define-symbol", "batch,2", "--convert-to-fp16", "--json"]
    assert main(["inspect", str(tmp_path / "m.onnx"), "graph", "-o", str(page), *options]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == len(given.graph.node) + 2
    model, program = carried_graph(page, 0), carried_graph(page, 1)
    assert [model["label"], program["label"]] == ["model", "program"]
    kinds = {held["label"]: [held["texts"][place] for place in held["kinds"]] for held in (model, program)}
    assert kinds["model"] == ["input", "Identity", "MatMul", "Tanh", "Softmax", "output"]
    assert "Cast" in kinds["program"]
    assert "batchx4" in model["texts"]
    assert "2x4" in program["texts"]
    assert model["colorings"][0]["values"] == ["float32"]


def test_the_model_has_its_large_weights(tmp_path):
    size = 64
    given = dense()
    given.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.eye(4, size, dtype=np.float32), "w"))
    given.graph.output[0].type.tensor_type.shape.dim[1].dim_value = size
    onnx.save(given, tmp_path / "m.onnx")
    page = tmp_path / "graph.html"
    assert main(["inspect", str(tmp_path / "m.onnx"), "graph", "-o", str(page)]) == 0
    held = carried_graph(page, 0)
    of_product = [held["texts"][place] for place in held["facts"][1]]
    facts = dict(zip(of_product[::2], of_product[1::2], strict=True))
    assert facts["shape"] == f"2x{size}"
    assert facts["constant"] == f"w, float32 4x{size}"


@pytest.mark.run_profiles
def test_times_of_the_model_sum_to_those_of_the_program(model, tmp_path):
    page = tmp_path / "graph.html"
    assert main(["inspect", str(model), "graph", "-o", str(page), "--color", "time"]) == 0
    sums = [sum(filter(None, carried_graph(page, at)["colorings"][0]["amounts"])) for at in (0, 1)]
    assert sums[0] == pytest.approx(sums[1])


def test_times_are_of_the_inference_that_reports_show():
    """The medians of all inferences equal those of no single inference."""
    program = stats_captures.cpu_program([("/a", "Conv"), ("/b", "Mul"), ("/c", "Relu")])
    buffers = [
        stats_captures.buffer(program, {(0, 0): stats_captures.in_row(times)}, inference=number, device=1)
        for number, times in enumerate([(50, 30, 20), (52, 4111, 20), (49, 31, 22), (51, 29, 21)])
    ]
    capture = Capture(buffers)
    table = REPORTS["nodes"](capture).table("nodes")
    _, of_operations = node_times(capture)
    assert of_operations.own_us == dict(zip(table.column("node"), table.column("time"), strict=True))


def test_times_are_those_of_the_nodes(model, tmp_path):
    page = tmp_path / "graph.html"
    assert main(["inspect", str(model), "graph", "-o", str(page), "--color", "time"]) == 0
    held = carried_graph(page)
    assert held["colorings"][0]["name"] == "time"
    names = [held["texts"][place] for place in held["names"]]
    times = dict(zip(names, held["colorings"][0]["amounts"], strict=True))
    assert times["x"] is None
    assert all(times[name] > 0 for name in ("/blk/mm", "/blk/sm"))


def test_a_program_without_statistics_has_no_times(model, tmp_path, capsys):
    program = qaic.compile(model, aic_binary_dir=tmp_path / "program")
    page = tmp_path / "graph.html"
    assert main(["inspect", str(program.path), "graph", "-o", str(page), "--color", "time"]) == 1
    assert "--stats-level 70" in capsys.readouterr().err
    assert not page.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["graph"], "graph -o graph.html"),
        (["graph", "-o", "g.svg"], ".html"),
        (["nodes", "-o", "g.html"], "graph -o g.html"),
    ],
)
def test_where_the_page_goes_is_said_before_any_work(model, capsys, arguments, said):
    assert main(["inspect", str(model), *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "compiled" not in error


@pytest.mark.parametrize("name", sorted(path.name for path in QPCS.glob("s*.qpc")))
def test_a_container_of_a_card_is_drawn(name, tmp_path, capsys):
    page = tmp_path / "card.html"
    assert main(["inspect", str(QPCS / name), "graph", "-o", str(page)]) == 0
    qpc = qaic.Qpc(QPCS / name)
    drawn, tables = drawn_card(qpc)
    kinds = [node.kind for node in drawn.nodes]
    fields = qpc.metadata.fields
    assert kinds.count("DMA request") == len(fields["dmaRequests"])
    assert kinds.count("semaphore") == len(fields["semaphoreInitState"])
    assert kinds.count("DMA buffer") == len(qpc.network_descriptor.get("dma_buffers", ()))
    assert kinds.count("input") + kinds.count("output") == len(qpc.buffer_mappings)
    rows = {table.name: len(table.rows) for table in tables}
    assert rows["bindings"] == len(qpc.buffer_mappings)
    assert rows["requests"] == len(fields["dmaRequests"])
    assert rows["cores"] == qpc.program_info.num_cores
    assert rows["segments"] == len(qpc.segments)
    # Each transfer is between a buffer and the cores.
    ends = {
        (drawn.nodes[begin].kind, drawn.nodes[end].kind)
        for begin, end, _ in drawn.edges
        if "DMA request" in (drawn.nodes[begin].kind, drawn.nodes[end].kind)
    }
    assert ("DMA buffer", "DMA request") in ends
    assert ("DMA request", "cores") in ends
    # Arrows between buffers, requests and cores point forward, and so do arrows of waits.
    changed = {end for _, end, _ in drawn.edges if drawn.nodes[end].kind == "semaphore"}
    assert not [(begin, end) for begin, end, _ in drawn.edges if end < begin and not {begin, end} & changed]


def test_a_card_has_no_times_of_nodes(tmp_path, capsys):
    arguments = ["inspect", str(QPCS / "s01_simple_f32_file.qpc"), "graph", "-o", str(tmp_path / "g.html")]
    assert main([*arguments, "--color", "time"]) == 1
    assert "omit --color time" in capsys.readouterr().err


@pytest.mark.run_profiles
def test_titles_of_quantized_programs_name_int8(model, tmp_path):
    output = tmp_path / "page.html"
    assert main(["profile", str(model), "--convert-to-quantize", "-n", "2", "-o", str(output)]) == 0
    title = re.search("<h1>([^<]*)</h1>", output.read_text())[1]
    assert "int8" in title
    assert "uint8" not in title
    assert "unknown" not in title


def test_the_table_of_the_page_omits_casts_of_the_compiler(tmp_path, capsys):
    """Regression: most rows were casts without a name, which `openqaic inspect MODEL nodes` omits."""
    page = tmp_path / "graph.html"
    assert (
        main(["inspect", str(save(tmp_path, affine())), "graph", "--convert-to-fp16", "-o", str(page)]) == 0
    )
    capsys.readouterr()
    table = page.read_text().partition('data-table="nodes"')[2]
    assert ">Cast</td>" not in table
    assert re.search(r"The table omits \d+ conversions? without a name\.</p>", table)


def test_a_graph_without_times_has_the_command_that_colors_it(call, program):
    err = call("inspect", program, "graph", "-o", "my page.html", "--color", "time")[2]
    assert "`openqaic inspect graph.onnx graph -o 'my page.html' --color time` measures it" in err
