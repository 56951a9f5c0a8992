"""Operations of a program, and the nodes of the user's model that the operations compute."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qaic
from compiler_oracle import FLOAT, info, model_of, node
from decoder_model import decoder, specializations
from qaic.compiler.driver import compile_model
from qaic.options.files.specializations import SpecializationEntry
from qaic.options.table import CompileOptions

RNG = np.random.default_rng(5)


def normal(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


def compiled(model, folder, **options):
    path = compile_model(model, CompileOptions(stats_level=70, **options), {}, output_dir=folder)
    return qaic.Qpc(path)


def ops_of(model, folder, **options):
    """Operations without the last one, which represents all others."""
    descriptor = json.loads(bytes(compiled(model, folder, **options).segments["opstatsdesc.open"].data))
    *ops, others = descriptor["cores"][0]["ops"]
    assert others["engine_name"] == "*"
    return ops


def of_kind(ops, *kinds):
    return [op for op in ops if op["kind"] in kinds]


def nodes_in(op):
    return op.get("nodes", [])


def residual():
    """Convolutions whose layout the engine changes, and which it fuses with sums and activations."""
    nodes = [
        node("Conv", ["x", "w1"], ["c1"], name="/conv1", pads=[1] * 4),
        node("Relu", ["c1"], ["r1"], name="/relu1"),
        node("Conv", ["r1", "w2"], ["c2"], name="/conv2", pads=[1] * 4),
        node("Add", ["c2", "r1"], ["s"], name="/add"),
        node("Relu", ["s"], ["r2"], name="/relu2"),
        node("GlobalAveragePool", ["r2"], ["p"], name="/pool"),
        node("Flatten", ["p"], ["f"], name="/flatten"),
        node("MatMul", ["f", "w3"], ["m"], name="/head/MatMul"),
        node("Add", ["m", "b"], ["y"], name="/head/Add"),
    ]
    constants = [
        ("w1", normal(32, 3, 3, 3)),
        ("w2", normal(32, 32, 3, 3)),
        ("w3", normal(32, 10)),
        ("b", normal(10)),
    ]
    return model_of(nodes, [info("x", [1, 3, 16, 16])], [info("y", [1, 10])], constants)


def test_fused_convolutions(tmp_path):
    ops = ops_of(residual(), tmp_path)
    first, second = of_kind(ops, "Conv", "FusedConv")
    assert nodes_in(first) == ["/conv1", "/relu1"]
    assert first["name"].startswith("/conv1/__")
    assert nodes_in(second) == ["/conv2", "/add", "/relu2"]
    assert (first["macs"], second["macs"]) == (32 * 256 * 27, 32 * 256 * 288)
    assert (first["output_bytes"], second["output_bytes"]) == (32 * 256 * 4,) * 2
    assert first["constant_bytes"] == 32 * 27 * 4
    (dense,) = of_kind(ops, "Gemm", "FusedGemm")
    assert (nodes_in(dense), dense["macs"]) == (["/head/MatMul", "/head/Add"], 320)
    assert dense["constant_bytes"] == (320 + 10) * 4
    assert sum(op.get("macs", 0) for op in ops) == 32 * 256 * (27 + 288) + 320
    # Each operation reads the result of the previous one.
    assert [[dep["oc"] for dep in op.get("deps", [])] for op in ops][1:] == [[n] for n in range(len(ops) - 1)]


def test_each_convolution_of_a_chain_of_integers_has_an_operation(tmp_path):
    # The engine changes the layout of the chain, and gives new names to all results.
    ops = ops_of(residual(), tmp_path, convert_to_quantize=True, use_random_input_data="uniform")
    first, second = of_kind(ops, "QLinearConv")
    assert nodes_in(first) == ["/conv1", "/relu1"]
    assert nodes_in(second)[0] == "/conv2"
    assert not set(nodes_in(second)) & {"/conv1", "/relu1", "/pool"}
    for op in of_kind(ops, "QLinearGlobalAveragePool"):
        assert "/conv2" not in nodes_in(op)


def test_nodes_between_convolutions_are_in_no_other_operation(tmp_path):
    # The other layout also removes the names of the results of these nodes.
    nodes = [
        node("Conv", ["x", "w1"], ["c1"], name="/conv1", pads=[1] * 4),
        node("Sigmoid", ["c1"], ["g1"], name="/gate1"),
        node("Mul", ["c1", "g1"], ["m1"], name="/mul1"),
        node("Conv", ["m1", "w2"], ["c2"], name="/conv2", pads=[1] * 4),
        node("Sigmoid", ["c2"], ["g2"], name="/gate2"),
        node("Mul", ["c2", "g2"], ["m2"], name="/mul2"),
        node("Add", ["m1", "m2"], ["s"], name="/add"),
        node("Conv", ["s", "w3"], ["y"], name="/conv3", pads=[1] * 4),
    ]
    constants = [("w1", normal(32, 3, 3, 3)), ("w2", normal(32, 32, 3, 3)), ("w3", normal(16, 32, 3, 3))]
    model = model_of(nodes, [info("x", [1, 3, 16, 16])], [info("y", [1, 16, 16, 16])], constants)
    # A reordering belongs to the convolution that needs it.
    ops = [op for op in ops_of(model, tmp_path) if not op["kind"].startswith("Reorder")]
    found = [name for op in ops for name in nodes_in(op)]
    assert sorted(found) == sorted(one.name for one in nodes)
    assert [nodes_in(op) for op in of_kind(ops, "Conv")][:2] == [["/conv1"], ["/conv2"]]


def test_helpers_of_a_product_share_its_nodes_and_count_it_once(tmp_path):
    nodes = [
        node("Relu", ["x"], ["r"], name="before"),
        node("MatMul", ["r", "w"], ["m"], name="/q/MatMul"),
        node("Add", ["m", "b"], ["a"], name="/q/Add"),
        node("Softmax", ["a"], ["y"], name="after"),
    ]
    constants = [("w", normal(16, 16)), ("b", normal(16))]
    model = model_of(nodes, [info("x", [1, 8, 16])], [info("y", [1, 8, 16])], constants)
    ops = ops_of(model, tmp_path)
    product = [op for op in ops if "/q/MatMul" in nodes_in(op)]
    assert all(nodes_in(op) == ["/q/MatMul", "/q/Add"] for op in product)
    assert [op.get("macs", 0) for op in product if op.get("macs")] == [8 * 16 * 16]
    assert {"Gemm", "MatMul"} & {op["kind"] for op in product if op.get("macs")}
    assert all(op["output_bytes"] == 8 * 16 * 4 for op in ops)


def test_nodes_that_passes_add_belong_to_those_they_round(tmp_path):
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="mm"),
        node("Add", ["m", "b"], ["a"], name="add"),
        node("Softmax", ["a"], ["y"], name="sm"),
    ]
    model = model_of(nodes, [info("x", [2, 4])], [info("y", [2, 4])], [("w", normal(4, 4)), ("b", normal(4))])
    ops = ops_of(model, tmp_path, convert_to_fp16=True)
    casts = of_kind(ops, "Cast")
    assert len(casts) >= 4
    assert {name for op in casts for name in nodes_in(op)} <= {"mm", "add", "sm"}
    assert all(nodes_in(op) for op in ops)


@pytest.mark.parametrize("name", ['a"b', "back\\slash", "new\nline", "größe/名前", "dup", ""])
def test_names_that_the_report_of_the_engine_cannot_hold(tmp_path, name):
    nodes = [
        node("Neg", ["x"], ["n"], name=name),
        node("Softmax", ["n"], ["s"], name=name),
        node("Sigmoid", ["s"], ["y"], name="dup"),
    ]
    qpc = compiled(model_of(nodes, [info("x", [2, 4])], [info("y", [2, 4])]), tmp_path)
    graph = onnx.load_from_string(bytes(qpc.graph)).graph
    names = [inner.name for inner in graph.node]
    assert len(set(names)) == 3
    assert all(inner.isprintable() and not set(inner) & set('"\\') for inner in names)
    ops = json.loads(bytes(qpc.segments["opstatsdesc.open"].data))["cores"][0]["ops"][:-1]
    assert [op["engine_name"] for op in ops] == names
    # The user's names, or the names of the results.
    assert [nodes_in(op) for op in ops] == [[name or "n"], [name or "s"], ["dup"]]
    assert ops[0]["name"] == f"{name or 'n'}/__0"


def test_many_nodes_of_one_name(tmp_path):
    count = 3000
    nodes = [node("Sin", [f"v{i}"], [f"v{i + 1}"], name="same") for i in range(count)]
    ops = ops_of(model_of(nodes, [info("v0", [2])], [info(f"v{count}", [2])]), tmp_path)
    assert len({op["engine_name"] for op in ops}) == count
    assert {tuple(nodes_in(op)) for op in ops} == {("same",)}


def test_functions_of_the_model_and_of_the_standard(tmp_path):
    body = [node("Sin", ["a"], ["t"], name="inner"), node("HardSwish", ["t"], ["b"], name="swish")]
    function = helper.make_function("local", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    nodes = [
        helper.make_node("Twice", ["x"], ["h"], domain="local", name="/call"),
        node("Softmax", ["h"], ["y"], name="/sm"),
    ]
    model = model_of(nodes, [info("x", [2, 4])], [info("y", [2, 4])], functions=[function])
    ops = ops_of(model, tmp_path)
    assert {name for op in ops for name in nodes_in(op)} == {"/call/inner", "/call/swish", "/sm"}


def looped(trips, *, inner=None):
    """A loop with three nodes, or with two nodes and another loop."""

    def body(name, extra, state):
        values = [
            helper.make_tensor_value_info(f"{name}_i", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"{name}_c", TensorProto.BOOL, []),
            helper.make_tensor_value_info(f"{name}_v", FLOAT, [2]),
        ]
        nodes = [
            node("Identity", [f"{name}_c"], [f"{name}_d"], name=f"{name}/go"),
            node("Sin", [f"{name}_v"], [f"{name}_s"], name=f"{name}/sin"),
            *extra,
        ]
        outputs = [
            helper.make_tensor_value_info(f"{name}_d", TensorProto.BOOL, []),
            helper.make_tensor_value_info(state, FLOAT, [2]),
        ]
        return helper.make_graph(nodes, name, values, outputs)

    constants = []
    count = "n"
    inputs = [info("x", [2])]
    if trips is None:
        inputs.append(info("n", [], TensorProto.INT64))
    else:
        constants.append(("n", np.array(trips, np.int64)))
    if inner is None:
        graph = body("b", [node("Cos", ["b_s"], ["b_r"], name="b/cos")], "b_r")
    else:
        constants.append(("k", np.array(inner, np.int64)))
        nested = body("k", [node("Cos", ["k_s"], ["k_r"], name="k/cos")], "k_r")
        graph = body(
            "b", [helper.make_node("Loop", ["k", "", "b_s"], ["b_r"], name="b/loop", body=nested)], "b_r"
        )
    loop = helper.make_node("Loop", [count, "", "x"], ["l"], name="loop", body=graph)
    return model_of([loop, node("Neg", ["l"], ["y"], name="neg")], inputs, [info("y", [2])], constants)


@pytest.mark.parametrize(
    ("trips", "inner", "executions"),
    [
        (7, None, 2 + 7 * 3),
        (0, None, 2 + 3),
        # The number is unknown before the program runs.
        (None, None, 2 + 100 * 3),
        (7, 5, 2 + 7 * (3 + 5 * 3)),
        (2**40, 2**40, 1_000_000 - 16),
    ],
)
def test_room_for_what_a_loop_repeats(tmp_path, trips, inner, executions):
    qpc = compiled(looped(trips, inner=inner), tmp_path)
    assert qpc.plan["stats"]["capacity"]["OP"] == executions + 16
    assert qpc.network_descriptor["dma_buffers"][-2]["size"] >= 48 * executions


def test_nodes_of_bodies_follow_the_loop(tmp_path):
    ops = ops_of(looped(7), tmp_path)
    assert [op["engine_name"] for op in ops] == ["loop", "b/go", "b/sin", "b/cos", "neg"]
    assert [nodes_in(op) for op in ops] == [["loop"], ["b/go"], ["b/sin"], ["b/cos"], ["neg"]]
    deps = [[dep["oc"] for dep in op.get("deps", [])] for op in ops]
    assert deps == [[], [], [], [2], [0]]
    assert all(dep == {"core": 0, "oc": dep["oc"], "data": True} for op in ops for dep in op.get("deps", []))


def test_sizes_that_only_a_run_can_tell(tmp_path):
    nodes = [node("NonZero", ["x"], ["n"], name="nz"), node("Cast", ["n"], ["y"], name="cast", to=FLOAT)]
    model = model_of(nodes, [info("x", [4])], [info("y", [1, None])])
    with pytest.raises(qaic.errors.CompileError):
        ops_of(model, tmp_path)
    nodes.append(node("ReduceSum", ["y"], ["z"], name="sum", keepdims=0))
    ops = ops_of(model_of(nodes, [info("x", [4])], [info("z", [])]), tmp_path / "whole")
    assert [(op["shape"], op["output_bytes"]) for op in ops] == [("[?]", 0), ("[?]", 0), ("[1]", 4)]
    assert ops[0]["operands"][-1] == "out [HOST] Dest n int64 <?> N/A"


@pytest.mark.parametrize("is_whole", [True, False])
def test_shapes_that_a_model_computes_from_shapes(tmp_path, is_whole):
    ops = ops_of(
        decoder(),
        tmp_path,
        convert_to_fp16=True,
        retained_state=True,
        whole_caches=is_whole,
        network_specialization_config=tuple(
            SpecializationEntry(entry["name"], {name: int(size) for name, size in entry["symbols"].items()})
            for entry in specializations()
        ),
    )
    assert len(ops) > 100
    if is_whole:
        assert [op["engine_name"] for op in ops if not op["output_bytes"] or not nodes_in(op)] == []
    else:
        # Only the values of inputs determine the attended part of the context.
        unknown = [op for op in ops if not op["output_bytes"]]
        assert unknown
        assert all("?" in op["shape"] for op in unknown)
