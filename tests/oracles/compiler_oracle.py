"""Runs results of the compiler and computes the expected results, without a container or a device."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

import session_models
from lowered_program import Program, lower_program
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.frontend.files import onnx_file
from qaic.compiler.ir.constants.weights import read_all
from qaic.options.table import CompileOptions

FLOAT = onnx.TensorProto.FLOAT
HALF = onnx.TensorProto.FLOAT16


def info(name, shape, elem_type=FLOAT):
    return helper.make_tensor_value_info(name, elem_type, shape)


def model_of(nodes, inputs, outputs, initializers=(), opset=17, **more):
    """Build a model; arrays given as (name, array) become initializers."""
    tensors = [
        onnx.numpy_helper.from_array(np.asarray(t[1]), t[0]) if isinstance(t, tuple) else t
        for t in initializers
    ]
    graph = helper.make_graph(nodes, "net", inputs, outputs, tensors)
    others = [helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("ai.onnx.ml", 3)]
    imports = [helper.make_opsetid("", opset), *others]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8, **more)
    if "functions" in more:
        model.opset_import.append(helper.make_opsetid("local", 1))
    return model


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, **attributes)


def lowered(model, **options) -> Program:
    """Lower a model in memory."""
    source = onnx_file.open_bytes(model.SerializeToString())
    return lower_program(source, CompileOptions(**options), Progress("test"))


def add_weights(model, weights):
    """Copy weights into the graph of a model."""
    for weight in weights:
        model.graph.initializer.append(
            onnx.TensorProto(
                name=weight.name,
                data_type=weight.elem_type,
                dims=weight.dims,
                raw_data=read_all(weight.source),
            )
        )


def whole(program: Program) -> onnx.ModelProto:
    """Copy the weights back into the graph."""
    model = onnx.ModelProto()
    model.CopyFrom(program.model)
    add_weights(model, program.weights.values())
    return model


def run(model, feeds, optimize=True):
    """Run a model in the engine without changes."""
    session = session_models.engine(model, optimize=optimize)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def run_fp16(model, feeds, optimize=True, **options):
    """Compile with convert_to_fp16 and run."""
    return run(whole(lowered(model, convert_to_fp16=True, **options)), feeds, optimize)


def half(array):
    """Round an array to float16."""
    with np.errstate(over="ignore"):
        return np.asarray(array).astype(np.float16).astype(np.float32)


def kinds(program: Program):
    return [n.op_type for n in program.model.graph.node]


def in_function(nodes, inputs, result, opset):
    """Move nodes into a function, and add a call of it."""
    imports = [helper.make_opsetid("", opset)]
    body = helper.make_function("local", "Whole", inputs, [result], nodes, imports)
    return [helper.make_node("Whole", inputs, [result], domain="local")], [body]


def as_call(model):
    """Move all nodes of a model into a function, which receives its inputs and its constants."""
    graph = model.graph
    operands = [*(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer)]
    results = [value.name for value in graph.output]
    body = helper.make_function("local", "Whole", operands, results, graph.node, model.opset_import)
    moved = onnx.ModelProto()
    moved.CopyFrom(model)
    del moved.graph.node[:]
    moved.graph.node.append(helper.make_node("Whole", operands, results, domain="local"))
    moved.functions.append(body)
    moved.opset_import.append(helper.make_opsetid("local", 1))
    return moved


def as_branches(model):
    """Move the nodes of a model with one output into both branches of a condition."""
    graph, (result,) = model.graph, [value.name for value in model.graph.output]
    branch = helper.make_graph(graph.node, "branch", [], [onnx.ValueInfoProto(name=result)])
    del graph.node[:]
    graph.initializer.append(helper.make_tensor("yes", onnx.TensorProto.BOOL, [], [True]))
    graph.node.append(node("If", ["yes"], [result], then_branch=branch, else_branch=branch))
    return model


#: places of the nodes of a model
PLACES = {"graph": lambda model: model, "function": as_call}
