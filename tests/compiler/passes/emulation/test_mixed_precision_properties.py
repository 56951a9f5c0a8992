"""Random graphs with nodes in float16 or float32, compared with evaluation of each node in numpy."""

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from test_fp16_properties import COMPUTING, FLOAT, SELECTING, SIZE, half, half_constant, programs, vectors

import session_models
from lowered_program import lower_program
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.frontend.files import onnx_file
from qaic.options.files.node_precision import NodePrecision
from qaic.options.table import CompileOptions


@st.composite
def choices(draw, nodes):
    """Options of precision, and the nodes that they select for float16."""
    kinds = sorted({op for op, _, _ in nodes})
    names = [name for _, _, name in nodes]
    convert = draw(st.booleans())
    execute = draw(st.lists(st.sampled_from(kinds), unique=True))
    keep = draw(st.lists(st.sampled_from([k for k in kinds if k not in execute] or [""]), unique=True))
    keep = [kind for kind in keep if kind]
    listed = draw(st.lists(st.sampled_from(names), unique=True))
    split = draw(st.integers(0, len(listed)))
    in_half, in_single = listed[:split], listed[split:]
    options = CompileOptions(
        convert_to_fp16=convert,
        execute_nodes_in_fp16=tuple(execute),
        keep_original_precision_for_nodes=tuple(keep),
        node_precision_info_file=NodePrecision(tuple(in_half), tuple(in_single)) if listed else None,
        clip_fp16_constants=draw(st.booleans()),
    )
    halves = {
        name
        for op, _, name in nodes
        if name not in in_single and (name in in_half or op in execute or (convert and op not in keep))
    }
    return options, halves


def expected(nodes, constants, x, halves, *, clip):
    """Evaluate node by node: a float16 node rounds its operands and results, and a float32 node rounds
    nothing.

    Expressions without inputs are folded in float32; an output that is one has the precision of its node.
    Constants are clipped where they are rounded.
    """
    values, folded, outputs = {"x": x}, dict(constants), {}
    for op, operands, name in nodes:
        compute = COMPUTING.get(op) or SELECTING[op]
        read = [values[o] if o in values else folded[o] for o in operands]
        if all(o in folded for o in operands):
            folded[name] = compute(*read)
            outputs[name] = half_constant(folded[name], clip=clip) if name in halves else folded[name]
            continue
        if name in halves:
            rounded = [
                half(value) if o in values else half_constant(value, clip=clip)
                for o, value in zip(operands, read, strict=True)
            ]
            values[name] = half(compute(*rounded))
        else:
            values[name] = compute(*read)
        outputs[name] = values[name]
    return outputs


@settings(max_examples=300, deadline=None)
@given(st.data(), programs(), vectors)
def test_each_node_computes_in_its_precision(data, program, x):
    nodes, constants, outputs = program
    options, halves = data.draw(choices(nodes))
    model = session_models.model(
        [helper.make_node(op, operands, [name]) for op, operands, name in nodes],
        [("x", FLOAT, [SIZE])],
        [(name, FLOAT, [SIZE]) for name in outputs],
        constants,
    )
    with onnx_file.open_bytes(model.SerializeToString()) as source:
        compiled = lower_program(source, options, Progress("test")).model
    onnx.checker.check_model(compiled)
    actual = dict(zip(outputs, session_models.engine(compiled).run(outputs, {"x": x}), strict=True))
    with np.errstate(all="ignore"):
        wanted = expected(nodes, constants, x, halves, clip=options.clip_fp16_constants)
    for name in outputs:
        np.testing.assert_array_equal(actual[name], wanted[name], err_msg=name)
