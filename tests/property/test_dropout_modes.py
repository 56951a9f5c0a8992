"""Training modes of Dropout that follow from constants, and options that name such nodes."""

import logging

import numpy as np
import pytest
from onnx import parser

import qaic
from compiler_oracle import PLACES, info, kinds, lowered, model_of, node, run
from qaic.errors import CompileError


def computed(model, feeds, **options):
    with qaic.Session(model.SerializeToString(), **options) as session:
        return session.run(feeds)


#: Nodes that compute a training mode `t` from constants -> True if values are dropped.
MODES = {
    "t = Identity (on)": True,
    "t = Cast <to = 9> (one)": True,
    "t = Not (off)": True,
    "n = Not (off) t = And (n, on)": True,
    "c = Constant <value_int = 1> () t = Cast <to = 9> (c)": True,
    "t = Identity (off)": False,
    "t = Not (on)": False,
    "t = And (on, off)": False,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", MODES)
def test_training_modes_that_follow_from_constants(mode, place, caplog):
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[8,16] x) => (float[8,16] y)
        <float r = {{0.5}}, bool on = {{1}}, bool off = {{0}}, int64 one = {{1}}>
        {{ {mode} d = Dropout <seed = 7> (x, r, t) y = Relu (d) }}"""
    )
    x = np.ones((8, 16), np.float32)
    with caplog.at_level(logging.WARNING, "qaic"):
        found = computed(PLACES[place](model), {"x": x})["y"]
    assert np.unique(found).tolist() == ([0, 2] if MODES[mode] else [1])
    assert ("drops values at random" in caplog.text) is MODES[mode]


@pytest.mark.parametrize(
    ("attributes", "is_refused"), [({}, True), ({"is_test": 0}, True), ({"is_test": 1}, False)]
)
def test_dropout_of_set_6_is_computed_in_inference_mode_only(attributes, is_refused):
    nodes = [node("Dropout", ["x"], ["d"], **attributes), node("Relu", ["d"], ["y"])]
    model = model_of(nodes, [info("x", [8])], [info("y", [8])], opset=6)
    if is_refused:
        with pytest.raises(CompileError, match="is_test is 0"):
            computed(model, {"x": np.ones(8, np.float32)})
    else:
        assert computed(model, {"x": np.ones(8, np.float32)})["y"].tolist() == [1] * 8


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "option",
    [
        {"node_precision_info_file": {"FP32NodeInstanceNames": ["p", "d", "y"]}},
        {"keep_original_precision_for_nodes": ["Mul", "Dropout", "Add"]},
    ],
)
def test_options_set_the_precision_of_a_dropout_that_drops_values(option, place):
    nodes = [
        node("Mul", ["x", "one"], ["p"]),
        node("Dropout", ["p", "r", "t"], ["d"], seed=7),
        node("Add", ["d", "zero"], ["y"]),
    ]
    constants = [
        ("one", np.float32(1)),
        ("zero", np.float32(0)),
        ("r", np.float32(0.1)),
        ("t", np.array(True)),
    ]
    x = np.full((8, 16), 1.0001, np.float32)
    model = PLACES[place](model_of(nodes, [info("x", x.shape)], [info("y", x.shape)], constants))
    found = computed(model, {"x": x}, convert_to_fp16=True, **option)["y"]
    expected = np.unique(run(model, {"x": x}, optimize=False)["y"])
    assert np.unique(found).tolist() == expected.tolist()
    assert expected.tolist() != np.float16(expected).tolist()


def test_a_stated_inference_mode_costs_no_roundings():
    def operators(operands):
        nodes = [
            node("Conv", ["x", "w"], ["c"]),
            node("Dropout", ["c", *operands], ["d"]),
            node("Relu", ["d"], ["r"]),
            node("Conv", ["r", "w"], ["y"]),
        ]
        constants = [("w", np.full((4, 4, 1, 1), 0.25, np.float32)), *operands.items()]
        model = model_of(nodes, [info("x", [1, 4, 8, 8])], [info("y", [1, 4, 8, 8])], constants)
        return kinds(lowered(model, convert_to_fp16=True))

    share = {"share": np.float32(0.5)}
    assert operators(share | {"mode": np.array(False)}) == operators(share)
