import logging

import numpy as np
import onnx
import pytest
from onnx import helper

from compiler_oracle import FLOAT, HALF, half, info, kinds, lowered, model_of, node, run, whole
from qaic.options.files.partitions import Partitions
from quant_oracle import mx_round

RNG = np.random.default_rng(11)


def partitions(*lists):
    return Partitions().load(
        Partitions().parse(
            {
                "partitions": [
                    {"name": f"p{i}", "devices": [{"deviceId": i}], **({} if n is None else {"nodeList": n})}
                    for i, n in enumerate(lists)
                ]
            }
        )
    )


def mx(array):
    return mx_round(np.asarray(array, np.float32), "mxint8")


def chain(elem_type=FLOAT, opset=17):
    return model_of(
        [
            node("Sin", ["x"], ["a"], name="first"),
            node("Cos", ["a"], ["b"], name="second"),
            node("Neg", ["b"], ["c"]),
            node("Add", ["c", "a"], ["y"], name="last"),
        ],
        [info("x", [3, 40], elem_type)],
        [info("y", [3, 40], elem_type), info("a", [3, 40], elem_type)],
        opset=opset,
    )


X = RNG.standard_normal((3, 40)).astype(np.float32)


def compiled(model, *lists, **options):
    return lowered(model, mdp_load_partition_config=partitions(*lists), allow_mxint8_mdp_io=True, **options)


def ours(model, *lists, feeds=None, **options):
    program = compiled(model, *lists, **options)
    onnx.checker.check_model(program.model)
    return run(whole(program), feeds or {"x": X})


@pytest.mark.parametrize("opset", [17, 21])
def test_values_are_rounded_where_they_cross(opset):
    out = ours(chain(opset=opset), ["first"], ["second", "last"])
    step = model_of([node("Cos", ["a"], ["b"])], [info("a", [3, 40])], [info("b", [3, 40])])
    a = run(model_of([node("Sin", ["x"], ["a"])], [info("x", [3, 40])], [info("a", [3, 40])]), {"x": X})["a"]
    b = run(step, {"a": mx(a)})["b"]
    # Outputs of the program to the host do not change.
    np.testing.assert_array_equal(out["a"], a)
    np.testing.assert_array_equal(out["y"], -b + mx(a))


def test_unlisted_nodes_stay_where_their_values_are():
    out = ours(chain(), ["first", "second"], ["last"])
    sin = run(model_of([node("Sin", ["x"], ["a"])], [info("x", [3, 40])], [info("a", [3, 40])]), {"x": X})[
        "a"
    ]
    cos = run(model_of([node("Cos", ["x"], ["a"])], [info("x", [3, 40])], [info("a", [3, 40])]), {"x": sin})[
        "a"
    ]
    np.testing.assert_array_equal(out["y"], mx(-cos) + mx(sin))


def test_nodes_go_by_their_first_result_too():
    by_name = ours(chain(), ["first"], ["second", "last"])
    by_result = ours(chain(), ["a"], ["b", "y"])
    np.testing.assert_array_equal(by_name["y"], by_result["y"])


def test_fp16_nodes_round_first_and_again():
    out = ours(chain(), ["first"], ["second", "last"], convert_to_fp16=True)
    sin = model_of([node("Sin", ["x"], ["a"])], [info("x", [3, 40])], [info("a", [3, 40])])
    cos = model_of([node("Cos", ["x"], ["a"])], [info("x", [3, 40])], [info("a", [3, 40])])
    crossed = half(mx(half(run(sin, {"x": half(X)})["a"])))
    expected = half(-half(run(cos, {"x": crossed})["a"]) + crossed)
    np.testing.assert_array_equal(out["y"], expected)


def test_float16_models_cross_too():
    feeds = {"x": X.astype(np.float16)}
    converted = ours(chain(), ["first"], ["second", "last"], convert_to_fp16=True)["y"]
    own = ours(chain(HALF), ["first"], ["second", "last"], feeds=feeds)["y"]
    np.testing.assert_array_equal(own, converted.astype(np.float16))


def test_constants_inputs_and_integers_do_not_cross():
    model = model_of(
        [
            node("Add", ["x", "c"], ["a"], name="first"),
            node("ArgMax", ["a"], ["i"], name="index"),
            node("Mul", ["x", "c"], ["b"], name="second"),
            node("Cast", ["i"], ["f"], to=FLOAT, name="third"),
            node("Add", ["b", "f"], ["y"], name="fourth"),
        ],
        [info("x", [1, 64])],
        [info("y", [1, 64])],
        [("c", RNG.standard_normal(64).astype(np.float32))],
    )
    out = ours(model, ["first", "index"], ["second", "third", "fourth"], feeds={"x": X[:1, :1].repeat(64, 1)})
    plain = run(model, {"x": X[:1, :1].repeat(64, 1)})
    np.testing.assert_array_equal(out["y"], plain["y"])


def test_a_value_that_several_nodes_read_is_rounded_once():
    assert kinds(compiled(chain(), ["first"], ["second", "last"])).count("Round") == 1


def test_integers_of_a_quantized_model_do_not_cross_as_floats():
    numbers = [("s", np.float32(0.013)), ("z", np.int8(0))]
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], name="first"),
        node("DequantizeLinear", ["q", "s", "z"], ["d"], name="second"),
        node("Neg", ["d"], ["y"], name="third"),
    ]
    model = model_of(nodes, [info("x", [3, 40])], [info("y", [3, 40])], numbers)
    expected = run(model, {"x": X})["y"]
    assert (mx(expected) != expected).any()
    np.testing.assert_array_equal(ours(model, ["first", "second"], ["third"])["y"], expected)


def test_branches_read_the_rounded_value():
    def branch(name, op):
        return helper.make_graph([node(op, ["a", "a"], [name])], name, [], [info(name, [40])])

    model = model_of(
        [
            node("Add", ["x", "x"], ["a"], name="first"),
            node(
                "If",
                ["p"],
                ["y"],
                name="second",
                then_branch=branch("t", "Add"),
                else_branch=branch("e", "Mul"),
            ),
        ],
        [info("p", [], onnx.TensorProto.BOOL), info("x", [40])],
        [info("y", [40])],
    )
    out = ours(model, ["first"], ["second"], feeds={"p": np.array(False), "x": X[0]})["y"]
    np.testing.assert_array_equal(out, mx(X[0] * 2) ** 2)


@pytest.mark.parametrize("lists", [(None,), (["first", "second", "last"],), (None, None)])
def test_without_two_node_lists_nothing_crosses(lists, caplog):
    with caplog.at_level(logging.WARNING):
        out = ours(chain(), *lists)
    np.testing.assert_array_equal(out["y"], run(chain(), {"x": X})["y"])
    assert "allow_mxint8_mdp_io" in caplog.text


def test_partitions_alone_change_nothing():
    config = partitions(["first"], ["second", "last"])
    assert lowered(chain(), mdp_load_partition_config=config).model == lowered(chain()).model
