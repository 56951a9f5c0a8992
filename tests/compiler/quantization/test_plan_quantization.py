"""The plan of a graph: the quantized values, their parameters, and the reason for all other values."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import helper

import golden_programs
import qaic
import session_models
from lowered_program import lower_program
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.frontend import files
from qaic.compiler.ir.constants.weights import read_all
from qaic.compiler.ir.graph_walk import all_nodes, node_key
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.precision import FloatReason
from qaic.compiler.pipeline import PHASES, run_passes
from qaic.compiler.quantization import plan_files
from qaic.compiler.quantization.plan_quantization import plan_quantization_pass
from qaic.options import resolve
from qaic.options.table import is_quantizing
from quantize_oracle import Tensor, run
from quantize_support import context_of, quantized

FLOAT = onnx.TensorProto.FLOAT
PASSES = [step for phase in PHASES.values() for step in phase]
BEFORE_INSERTION = PASSES[: PASSES.index(plan_quantization_pass) + 1]
#: Programs that are quantized with a file; measuring is a separate pass.
QUANTIZED = (
    "shufflenet-quantized",
    "encoder-quantized",
    "text-quantized",
    "text-quantized-int16",
    "text-mixed",
    "normalized-quantized",
    "encodings",
)


class Ranges:
    """A profile of a small graph."""

    graph_hash = 0

    def __init__(self, *names):
        self.tensors = {name: Tensor(-2.0, 3.0) for name in names}
        self.precisions = {}


def model_of(nodes, shape=(2, 4), outputs=("y",), opset=17, **constants):
    return session_models.model(
        nodes,
        [("x", FLOAT, shape)],
        [(name, FLOAT, None) for name in outputs],
        {name: np.asarray(values) for name, values in constants.items()},
        opset=opset,
    )


def plan_of(model, *names, **options):
    parts = {}
    quantized(model, Ranges(*names), parts=parts, **options)
    return parts["plan"]


def planned(program, folder):
    """Run the passes up to the plan on a golden program; return its nodes and the plan."""
    made, given = golden_programs.PROGRAMS[program](folder)
    options = resolve(given, options_path=None, model_is_container=False).compile
    assert is_quantizing(options)
    with files.opened(made if isinstance(made, onnx.ModelProto) else str(made)) as source:
        model = Model(source.parse(), source.weights)
        context = context_of(options)
        run_passes(BEFORE_INSERTION, model, context)
    return list(all_nodes(model.proto.graph.node)), context.quantization


@pytest.mark.parametrize("program", QUANTIZED)
def test_every_node_is_in_one_group_or_has_a_reason(program, tmp_path):
    nodes, plan = planned(program, tmp_path)
    grouped = [node_key(node) for group in plan.groups() for node in group.group.nodes]
    floats = [node_key(node) for entry in plan.floats() for node in entry.nodes]
    assert sorted(grouped + floats) == sorted(map(node_key, nodes))
    assert grouped
    assert plan.reasons().keys() == set(floats)


REASONS = {
    FloatReason.OPERATOR: ([helper.make_node("Sin", ["x"], ["y"])], {}, {}),
    FloatReason.TYPE: (
        [
            helper.make_node("Cast", ["x"], ["d"], to=onnx.TensorProto.DOUBLE),
            helper.make_node("Relu", ["d"], ["r"]),
            helper.make_node("Cast", ["r"], ["y"], to=FLOAT),
        ],
        {},
        {},
    ),
    FloatReason.CONSTANT: (
        [helper.make_node("Relu", ["c"], ["k"]), helper.make_node("Sin", ["k"], ["y"])],
        {"c": np.float32([1, 2])},
        {},
    ),
    FloatReason.NOT_FINITE: (
        [helper.make_node("Add", ["x", "c"], ["y"])],
        {"c": np.float32([-np.inf, 0, 0, 0])},
        {},
    ),
    FloatReason.KEPT_PRECISION: (
        [helper.make_node("Relu", ["x"], ["y"])],
        {},
        {"keep_original_precision_for_nodes": ("Relu",)},
    ),
    FloatReason.EXECUTED_IN_FP16: (
        [helper.make_node("Relu", ["x"], ["y"])],
        {},
        {"execute_nodes_in_fp16": ("Relu",)},
    ),
    FloatReason.NO_FLOATS: (
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Abs", ["s"], ["i"]),
            helper.make_node("Reshape", ["x", "i"], ["y"]),
        ],
        {},
        {},
    ),
}


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.code)
def test_a_node_stays_in_float_for_a_reason(reason):
    nodes, constants, options = REASONS[reason]
    # Another node is quantized, so that a plan exists.
    nodes = [*nodes, helper.make_node("Sigmoid", ["x"], ["q"])]
    model = model_of(nodes, outputs=("y", "q"), **constants)
    names = {"x", *(name for node in nodes for name in node.output)}
    assert reason in plan_of(model, *names, **options).reasons().values()


def test_a_node_without_a_range_has_that_reason():
    model = model_of(
        [helper.make_node("Sigmoid", ["x"], ["y"]), helper.make_node("Relu", ["y"], ["z"])],
        outputs=("y", "z"),
    )
    assert plan_of(model, "x", "y").reasons() == {"z": FloatReason.NO_RANGE}


def test_a_group_that_stays_in_float_keeps_the_nodes_that_were_joined_to_it():
    """A mask of minus infinity and the following Relu form one group."""
    model = model_of(
        [helper.make_node("Add", ["x", "c"], ["a"]), helper.make_node("Relu", ["a"], ["y"])],
        c=np.float32([-np.inf, 0, 0, 0]),
    )
    parts = {}
    result = quantized(model, Ranges("x", "a", "y"), parts=parts)
    assert parts["plan"].reasons() == dict.fromkeys("ay", FloatReason.NOT_FINITE)
    feeds = {"x": np.float32([[1, 2, -3, 4], [5, 6, 7, -8]])}
    assert run(result, feeds)["y"].tolist() == [[0, 2, 0, 4], [0, 6, 7, 0]]
    assert [node.op_type for node in result.graph.node] == ["Add", "Relu"]


def test_text_of_a_plan():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Sin", ["r"], ["y"]),
    ]
    model = model_of(nodes, w=np.eye(4, dtype=np.float32), b=np.float32([1, 2, 3, 4]))
    schemas = {
        "quantization_schema_activations": "asymmetric",
        "quantization_schema_constants": "symmetric",
    }
    plan = plan_of(model, "x", "m", "a", "r", **schemas)
    step = float(np.float32(5 / 255))
    assert plan_files.plan_text(plan) == (
        "3 nodes in 1 quantized group, 1 node in floating point\n"
        "r: MatMul + Add + Relu, Int8, integer kernel\n"
        f"  reads x: {step:.9g} x (q + 26)\n"
        f"  weight w: scale {float(np.float32(1 / 127)):.9g}, offset 0, with a bias\n"
        f"  makes r: {step:.9g} x (q + 26)\n"
        "y: Sin, float: Its operator has no quantized form.\n"
    )


def lowered(program, folder, more=None, without=()):
    """Run all passes on a golden program."""
    made, given = golden_programs.PROGRAMS[program](folder)
    given = {name: value for name, value in given.items() if name not in without} | (more or {})
    options = resolve(given, options_path=None, model_is_container=False).compile
    with files.opened(made if isinstance(made, onnx.ModelProto) else str(made)) as source:
        found = lower_program(source, options, Progress("test"))
        numbers = {name: read_all(weight.source) for name, weight in found.weights.items()}
    return found.model.SerializeToString(deterministic=True), numbers, found.context.quantization


@pytest.mark.parametrize("program", QUANTIZED)
def test_exported_files_give_the_same_program(program, tmp_path):
    graph, numbers, plan = lowered(program, tmp_path)
    exported = plan_files.files_of(plan)
    for name, content in exported.items():
        (tmp_path / name).write_text(content)
    files = {
        "external_quantization_file": str(tmp_path / "quantization-encodings.json"),
        "node_precision_info_file": str(tmp_path / "node-precision.yaml"),
    }
    sources = ("load_profile", "allow_profile_mismatch")
    again = lowered(program, tmp_path, files, sources)
    assert plan_files.plan_json(again[2])["groups"] == plan_files.plan_json(plan)["groups"]
    assert again[:2] == (graph, numbers)


def test_exported_node_precisions_keep_the_same_nodes_in_float(tmp_path):
    plan = lowered("text-mixed", tmp_path)[2]
    path = tmp_path / "nodes.yaml"
    path.write_text(json.dumps(plan_files.node_precision(plan)))
    assert plan.chosen_floats
    options = ("execute_nodes_in_fp16", "keep_original_precision_for_nodes")
    again = lowered("text-mixed", tmp_path, {"node_precision_info_file": str(path)}, options)[2]
    assert plan_files.plan_json(again)["groups"] == plan_files.plan_json(plan)["groups"]
    assert again.chosen_floats == plan.chosen_floats


def test_debug_folder_receives_the_plan(tmp_path):
    made, given = golden_programs.PROGRAMS["normalized-quantized"](tmp_path)
    qaic.compile(made, **given, enable_debug=True, output_dir=str(tmp_path / "out"))
    folder = tmp_path / "out" / "compiler-debug"
    plan = json.loads((folder / "quantization-plan.json").read_text())
    assert {entry["reason"] for entry in plan["floats"]} >= {"nested_graph"}
    assert " quantized groups, " in (folder / "quantization-plan.txt").read_text()
    assert "activation_encodings" in json.loads((folder / "quantization-encodings.json").read_text())
    qaic.compile(made, node_precision_info_file=str(folder / "node-precision.yaml"))
