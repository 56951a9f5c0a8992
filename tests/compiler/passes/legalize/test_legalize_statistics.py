"""Means and deviations of normalizations, compared with float64 in numpy."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from compiler_oracle import as_branches, as_call, info, lowered, model_of, node, run, whole

EPSILON = 1e-3
SHAPE = (2, 3, 8)


def normalized(op, axis, constants, x):
    """Compute all results of a normalization by name."""
    total = sum(
        value.astype(np.float64) for value in (x, constants.get("s"), constants.get("b")) if value is not None
    )
    over = tuple(range(axis % total.ndim, total.ndim))
    is_simplified = "Simplified" in op
    mean = 0 * total.mean(over, keepdims=True) if is_simplified else total.mean(over, keepdims=True)
    deviation = 1 / np.sqrt(((total - mean) ** 2).mean(over, keepdims=True) + EPSILON)
    result = (total - mean) * deviation * constants["w"] + constants.get("o", 0)
    return {"y": result, "mean": mean, "dev": deviation, "sum": total}


@pytest.mark.parametrize(
    ("dtype", "options"),
    [(np.float32, {}), (np.float32, {"convert_to_fp16": True}), (np.float16, {})],
    ids=["float32", "converted", "float16"],
)
@pytest.mark.parametrize(("opset", "place"), [(11, "graph"), (17, "function"), (18, "branches")])
@pytest.mark.parametrize(
    ("op", "axis", "results"),
    [
        *(("SimplifiedLayerNormalization", axis, ["y", "dev"]) for axis in (1, -2, -1, 2)),
        *(
            (op, -1, results)
            for op in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
            for results in (
                ["y", "mean"],
                ["y", "", "dev"],
                ["y", "mean", "dev", "sum"],
                ["y", "", "", "sum"],
            )
        ),
    ],
)
def test_statistics_are_those_of_the_operand(op, axis, results, place, opset, dtype, options):
    is_skip, has_offset = op.startswith("Skip"), op == "SkipLayerNormalization"
    # The engine has the other operator in no function.
    place = "graph" if place == "function" and not is_skip else place
    rng, constants = np.random.default_rng(3), {}
    if is_skip:
        constants |= {"s": rng.standard_normal(SHAPE), "b": rng.standard_normal(SHAPE[-1])}
    constants |= {name: rng.standard_normal(SHAPE[axis:]) for name in ("w", "o")[: 1 + has_offset]}
    constants = {name: value.astype(dtype) for name, value in constants.items()}
    # An addition in front makes the operand an inner value.
    operands = ["x2", *(name for name in ("s", "w", "o", "b") if name in constants)]
    given = {"domain": "com.microsoft"} if is_skip else {"axis": axis}
    nodes = [node("Add", ["x", "x"], ["x2"]), node(op, operands, results, epsilon=EPSILON, **given)]
    parts = [name for name in results if name]
    for name in parts:
        nodes += [
            node("Cast", [name], [f"{name}_float"], to=TensorProto.FLOAT),
            node("Reshape", [f"{name}_float", "flat"], [f"{name}_flat"]),
        ]
    nodes.append(node("Concat", [f"{name}_flat" for name in parts], ["all"], axis=0))
    elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = model_of(
        nodes,
        [info("x", SHAPE, elem_type)],
        [info("all", None)],
        [*constants.items(), ("flat", np.array([-1]))],
        opset,
    )
    places = {"graph": lambda model: model, "function": as_call, "branches": as_branches}
    program = whole(lowered(places[place](model), **options))
    x = rng.standard_normal(SHAPE).astype(dtype)
    found = run(program, {"x": x})[program.graph.output[0].name]
    right = normalized(op, axis, constants, x + x)
    expected = np.concatenate([right[name].reshape(-1) for name in parts])
    assert [dim.dim_value for dim in program.graph.output[0].type.tensor_type.shape.dim] == [expected.size]
    is_narrow = options or dtype == np.float16
    np.testing.assert_allclose(
        found, expected, rtol=2e-2 if is_narrow else 1e-5, atol=2e-2 if is_narrow else 1e-5
    )
