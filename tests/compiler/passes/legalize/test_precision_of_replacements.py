"""Options that name nodes or operators, for nodes that passes guard, move or replace."""

import logging

import numpy as np
import pytest
from onnx import TensorProto, helper
from test_empty_operands import CUT, cut_model
from test_legalize_exports import has_attention

import decoder_model
import single_pass
from compiler_oracle import HALF, info, lowered, model_of, node, run, whole
from qaic.options.files.node_precision import NodePrecision

INT64 = TensorProto.INT64


def grid(*shape):
    """Numbers that float16 rounds."""
    return np.linspace(-1, 2, int(np.prod(shape)), dtype=np.float32).reshape(shape) * np.float32(1.001)


def of_rows(operator, axis):
    """Build a TopK or OneHot over a number of rows that is known only at run time."""
    constants = {"count": np.array([2]), "depth": np.array(4), "values": np.float32([2.001, 5.001])}
    nodes = [
        node("NonZero", ["chosen"], ["found"]),
        node("Squeeze", ["found", "first"], ["rows"]),
        node("Gather", ["x", "rows"], ["g"]),
    ]
    if operator == "TopK":
        nodes.append(node("TopK", ["g", "count"], ["t", "i"], axis=axis))
        nodes += [node("Cast", ["i"], ["f"], to=1), node("Mul", ["t", "f"], ["r"])]
    else:
        nodes += [node("Cast", ["g"], ["ints"], to=INT64)]
        nodes += [node("OneHot", ["ints", "depth", "values"], ["r"], axis=axis)]
    nodes.append(node("ReduceSum", ["r"], ["y"], keepdims=0))
    inputs = [info("x", [3, 3, 4]), info("chosen", [3], TensorProto.BOOL)]
    model = model_of(nodes, inputs, [info("y", None)], [("first", np.array([0])), *constants.items()])
    # Numbers whose differences are below the resolution of float16.
    x = np.float32(1) + np.arange(36, dtype=np.float32)[::-1].reshape(3, 3, 4) * np.float32(1e-5)
    return model, {"x": x, "chosen": np.array([True, False, True])}


def of_one(last, feeds, opset=17, constants=(), before=()):
    """Build a model of one node with the result y, after the nodes `before`."""
    inputs = [
        info(name, value.shape, helper.np_dtype_to_tensor_dtype(value.dtype)) for name, value in feeds.items()
    ]
    return model_of(
        [*before, last], inputs, [info("y", None, INT64 if last.op_type == "Size" else 1)], constants, opset
    ), feeds


def of_cuts(made, operands, cuts, opset=17):
    """Build a model of one node, some of whose sizes are known only at run time."""
    model, feeds = cut_model(made, operands, cuts.split(), opset)
    return model, feeds(2)


SIGNAL = {"x": grid(8, 1)}
CASES = {
    # One cut for each operator.
    **{
        made.op_type: of_cuts(made, operands, cuts, opset)
        for (made, operands), cuts, _, opset in CUT
        if made.op_type != "QuantizeLinear"
    },
    **{
        f"Einsum {equation}": of_cuts(
            node("Einsum", ["x", "v"], ["r"], equation=equation),
            {"x": grid(4, 4), "v": grid(4, 4)[::-1] ** 2},
            cuts,
        )
        for equation, cuts in (("ij,jk->ik", "x0 v1"), ("...j,kj", "x0 v0"))
    },
    **{f"{op} along {axis}": of_rows(op, axis) for op in ("TopK", "OneHot") for axis in (1, 2)},
    "DFT of one signal": of_one(node("DFT", ["x"], ["y"], axis=0), SIGNAL),
    "Range": of_one(
        node("Size", ["r"], ["y"]),
        {"step": np.float32([0.1])},
        constants=[("start", np.float32([0])), ("limit", np.float32([1]))],
        before=[node("Range", ["start", "limit", "step"], ["r"])],
    ),
    "SequenceAt": of_one(
        node("SequenceAt", ["s", "at"], ["y"]),
        {"x": grid(3, 4)},
        constants=[("at", np.array(1))],
        before=[node("SplitToSequence", ["x"], ["s"], axis=1, keepdims=0)],
    ),
    "Dropout": of_one(
        node("Dropout", ["x", "ratio", "mode"], ["y"]),
        {"x": grid(3, 4)},
        constants=[("ratio", np.float32(0.5)), ("mode", np.array(False))],
    ),
    "Trilu": of_one(node("Trilu", ["x", "k"], ["y"]), {"x": grid(4, 4), "k": np.array(1)}),
    "Where": of_one(
        node("Cast", ["w"], ["y"], to=1),
        {"c": np.array([True, False]), "x": np.int8([1, 2])},
        before=[node("Where", ["c", "x", "x"], ["w"])],
    ),
    "Attention": of_one(
        node("Attention", ["x", "x", "x", "mask"], ["y"], scale=1.0),
        {"x": grid(1, 1, 4, 8)},
        opset=23,
        constants=[("mask", grid(1, 4))],
    ),
    "recurrent": of_one(
        node("GRU", ["x", "w", "u"], ["y"], hidden_size=2, layout=1),
        {"x": grid(3, 2, 4)},
        constants=[("w", grid(1, 6, 4)), ("u", grid(1, 6, 2))],
    ),
    "Resize": of_one(
        node("Resize", ["x", "", "scales"], ["y"], axes=[-1], mode="linear"),
        {"x": grid(1, 1, 3, 4)},
        opset=18,
        constants=[("scales", np.float32([1.5]))],
    ),
}


#: Operators that passes insert before and after nodes.
MOVING = {"Expand", "Gather", "Pad", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[has_attention] if name == "Attention" else []) for name in CASES]
)
def test_options_apply_to_the_nodes_of_the_user_alone(name, caplog):
    model, feeds = CASES[name]
    results = tuple(result for one in model.graph.node for result in one.output if result)
    kinds = {one.op_type for one in model.graph.node}

    def found(**options):
        program = run(whole(lowered(model, **options)), feeds)
        return [program[value.name] for value in model.graph.output]

    def same(expected, **options):
        for value, other in zip(found(**options), expected, strict=True):
            np.testing.assert_array_equal(value, other, err_msg=str(options))

    single, half = found(), found(convert_to_fp16=True)
    same(single, convert_to_fp16=True, node_precision_info_file=NodePrecision((), results))
    same(half, node_precision_info_file=NodePrecision(results, ()))
    # A Gather replaces the node.
    others = MOVING - kinds - ({"Gather"} if name == "SequenceAt" else set())
    same(single, execute_nodes_in_fp16=tuple(others))
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        kept = found(convert_to_fp16=True, keep_original_precision_for_nodes=tuple(kinds))
        executed = found(execute_nodes_in_fp16=tuple(kinds))
    if name == "SequenceAt":
        assert repr(name) in caplog.text
        return
    np.testing.assert_equal((kept, executed), (single, half))


def test_a_moved_node_of_a_float16_model_in_fp32_does_not_overflow():
    nodes = [node("DFT", ["x"], ["r"], axis=0), node("Mul", ["r", "c"], ["y"])]
    outputs = [info("r", [8, 2], HALF), info("y", [8, 2], HALF)]
    model = model_of(nodes, [info("x", [8, 1], HALF)], outputs, [("c", np.float16([1 / 512]))])
    x = np.full((8, 1), 10000, np.float16)
    for options, expected in (((), np.inf), (("r", "y"), np.float16(80000 / 512))):
        listed = NodePrecision((), options) if options else None
        found = run(whole(lowered(model, node_precision_info_file=listed)), {"x": x})
        assert found["r"][0, 0] == np.inf
        assert found["y"][0, 0] == expected


#: Operators of a decoder -> True if its caches are read in part when a file lists their nodes.
LISTED = {
    ("MatMul",): True,
    ("MatMul", "Mul"): True,
    ("CtxScatter",): False,
    ("CtxGather", "Expand", "Transpose"): False,
}


@pytest.mark.parametrize(
    ("half", "variant"),
    [
        (True, {}),
        (False, {"groups": 1}),
        (True, {"groups": 4}),
        (True, {"layer_functions": True}),
        (False, {"layer_functions": True}),
        (True, {"elem_type": HALF}),
    ],
)
def test_names_of_a_decoder_mean_its_nodes_if_caches_are_read_in_part(half, variant):
    sizes = decoder_model.Sizes(layers=1, width=6, context=128, **variant)
    model = decoder_model.decoder(sizes)
    bodies = [model.graph, *(body for body in model.functions if body.domain == decoder_model.LOCAL)]
    rng = np.random.default_rng(3)
    feeds = {name: rng.standard_normal(sizes.cache_shape()).astype(sizes.dtype) for name in sizes.caches}
    feeds |= {"input_ids": np.array([[3, 5, 7]]), "position_ids": np.array([[20, 21, 22]])}

    def found(**options):
        model_options = {"network_specialization_config": decoder_model.specializations(3, context=128)}
        model_options |= {"retained_state": True, "convert_to_fp16": half}
        lowered = single_pass.before("take-out-state-rows", model, **model_options, **options)[0]
        made = [name for one in lowered.proto.graph.node for name in one.output]
        return single_pass.outputs(lowered, feeds), any("attended" in name for name in made)

    plain, changed = found()[0], set()
    for operators, is_narrowed in LISTED.items():
        nodes = [one for body in bodies for one in body.node if one.op_type in operators]
        names = tuple(one.output[0] for one in nodes)
        lists = NodePrecision((), names) if half else NodePrecision(names, ())
        given = {"node_precision_info_file": lists}
        expected, was_narrowed = found(**given, whole_caches=True)
        assert not was_narrowed
        np.testing.assert_equal(found(**given), (expected, is_narrowed), err_msg=str(operators))
        changed |= {operators for name in plain if (plain[name] != expected[name]).any()}
    assert ("MatMul", "Mul") in changed
