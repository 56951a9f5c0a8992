"""A decoder as exporters for the card write one: key and value caches go in and come out as retained state.

The caches are written and read by functions of the domain ``com.qualcomm.cloud`` whose bodies are in the
model. Position -1 is padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
DOMAIN = "com.qualcomm.cloud"


@dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder."""

    layers: int = 2
    heads: int = 2
    width: int = 4
    vocabulary: int = 23
    context: int = 32

    @property
    def hidden(self):
        return self.heads * self.width

    @property
    def caches(self):
        """Names of the caches in the order of the inputs."""
        return [f"past_{kind}.{layer}" for layer in range(self.layers) for kind in ("key", "value")]

    def cache_shape(self, batch=1):
        return (batch, self.heads, self.context, self.width)


def specializations(prefill=8, batch=1, context=32):
    """Name the two sets of shapes of a decoder, in the order of exporters' files."""
    common = {"batch_size": str(batch), "ctx_len": str(context)}
    return [
        {"name": "Prefill", "symbols": {**common, "seq_len": str(prefill)}},
        {"name": "Decode", "symbols": {**common, "seq_len": "1"}},
    ]


def _ints(name, values):
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(values, np.int64)))


def _counting(size_of, axis, shape, name):
    """Count along one axis: 0, 1, ... up to a size of a tensor, shaped to broadcast."""
    return [
        helper.make_node("Shape", [size_of], [f"{name}_shape"]),
        _ints(f"{name}_axis", axis),
        helper.make_node("Gather", [f"{name}_shape", f"{name}_axis"], [f"{name}_size"], axis=0),
        helper.make_node("Range", ["nil", f"{name}_size", "unit"], [f"{name}_flat"]),
        _ints(f"{name}_to", shape),
        helper.make_node("Reshape", [f"{name}_flat", f"{name}_to"], [f"{name}_column"]),
        helper.make_node("Expand", [f"{name}_column", "target"], [name]),
    ]


def _function(name, inputs, output, nodes):
    scalars = [
        helper.make_node("Constant", [], ["nil"], value=numpy_helper.from_array(np.int64(0))),
        helper.make_node("Constant", [], ["unit"], value=numpy_helper.from_array(np.int64(1))),
    ]
    return helper.make_function(
        DOMAIN, name, inputs, [output], [*scalars, *nodes], [helper.make_opsetid("", OPSET)]
    )


def _target(first, second):
    """Shape [batch, heads, rows, 1]: batch and heads of the cache, rows of the positions."""
    return [
        helper.make_node("Shape", [first], ["of_cache"]),
        helper.make_node("Shape", [second], ["of_rows"]),
        _ints("front", [0, 1]),
        _ints("back", [-1]),
        _ints("one", [1]),
        helper.make_node("Gather", ["of_cache", "front"], ["outer"], axis=0),
        helper.make_node("Gather", ["of_rows", "back"], ["rows"], axis=0),
        helper.make_node("Concat", ["outer", "rows", "one"], ["target"], axis=0),
    ]


def scatter_function():
    """``CtxScatter(data, position_ids, updates)``: write the rows of ``updates`` at their positions."""
    return _function(
        "CtxScatter",
        ["data", "position_ids", "updates"],
        "written",
        [
            *_target("data", "position_ids"),
            *_counting("data", 0, [-1, 1, 1, 1], "sequences"),
            *_counting("data", 1, [1, -1, 1, 1], "of_heads"),
            _ints("inner", [1, 3]),
            helper.make_node("Unsqueeze", ["position_ids", "inner"], ["positions_column"]),
            helper.make_node("Expand", ["positions_column", "target"], ["positions"]),
            helper.make_node("Concat", ["sequences", "of_heads", "positions"], ["places"], axis=-1),
            helper.make_node("ScatterND", ["data", "places", "updates"], ["written"]),
        ],
    )


def gather_function():
    """``CtxGather(data, indices)``: read rows of a cache; ``indices`` is [batch, heads, rows]."""
    return _function(
        "CtxGather",
        ["data", "indices"],
        "read",
        [
            _ints("inner", [-1]),
            helper.make_node("Unsqueeze", ["indices", "inner"], ["places"]),
            helper.make_node("GatherND", ["data", "places"], ["read"], batch_dims=2),
        ],
    )


def decoder(sizes=Sizes(), seed=0):
    """Build the model: ``input_ids``, ``position_ids`` and caches to ``logits`` per position and caches."""
    rng = np.random.default_rng(seed)
    weights = {
        "embedding": rng.standard_normal((sizes.vocabulary, sizes.hidden)),
        "place": rng.standard_normal((sizes.context, sizes.hidden)) * 0.5,
        "head": rng.standard_normal((sizes.hidden, sizes.vocabulary)),
    }
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["embedded"]),
        # Padding has position -1, which has no place of its own.
        helper.make_node("Max", ["position_ids", "zero"], ["known_places"]),
        helper.make_node("Gather", ["place", "known_places"], ["placed"]),
        helper.make_node("Add", ["embedded", "placed"], ["x.0"]),
        helper.make_node("Shape", ["past_key.0"], ["cache_shape"]),
        helper.make_node("Gather", ["cache_shape", "axis_of_context"], ["context"], axis=0),
        helper.make_node("Squeeze", ["context"], ["context_size"]),
        helper.make_node("Range", ["zero", "context_size", "one"], ["slots"]),
        # A position sees itself and what is before it: [batch, 1, rows, context].
        helper.make_node("Unsqueeze", ["position_ids", "inner_axes"], ["positions_column"]),
        helper.make_node("Greater", ["slots", "positions_column"], ["hidden_slots"]),
        # Slots behind the last position are read from outside, as exporters do to mark them.
        helper.make_node("ReduceMax", ["position_ids"], ["last_place"], axes=[1], keepdims=1),
        helper.make_node("LessOrEqual", ["slots", "last_place"], ["used"]),
        helper.make_node("Where", ["used", "slots", "outside"], ["slots_or_outside"]),
        helper.make_node("Unsqueeze", ["slots_or_outside", "axis_of_heads"], ["slots_of_all"]),
        helper.make_node("Slice", ["cache_shape", "from_first", "to_third"], ["rows_shape"]),
        helper.make_node("Expand", ["slots_of_all", "rows_shape"], ["rows"]),
    ]
    for layer in range(sizes.layers):
        nodes += _layer(layer, weights, sizes, rng)
    nodes.append(helper.make_node("MatMul", [f"x.{sizes.layers}", "head"], ["logits"]))
    constants = {
        "zero": np.int64(0),
        "one": np.int64(1),
        "outside": np.int64(np.iinfo(np.int32).max),
        "axis_of_context": np.int64([2]),
        "axis_of_heads": np.int64([1]),
        "inner_axes": np.int64([1, 3]),
        "from_first": np.int64([0]),
        "to_third": np.int64([3]),
        "split_shape": np.int64([0, 0, sizes.heads, sizes.width]),
        "join_shape": np.int64([0, 0, sizes.hidden]),
        "scale": np.float32(sizes.width**-0.5),
        "masked": np.float32(-10000),
        **{name: array.astype(np.float32) for name, array in weights.items()},
    }
    cache = ["batch_size", sizes.heads, "ctx_len", sizes.width]
    rows = ["batch_size", "seq_len"]
    graph = helper.make_graph(
        nodes,
        "decoder",
        [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, rows),
            helper.make_tensor_value_info("position_ids", TensorProto.INT64, rows),
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, cache) for name in sizes.caches),
        ],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, [*rows, sizes.vocabulary]),
            *(
                helper.make_tensor_value_info(f"{name}_RetainedState", TensorProto.FLOAT, cache)
                for name in sizes.caches
            ),
        ],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)],
        functions=[scatter_function(), gather_function()],
        ir_version=8,
    )


def _layer(layer, weights, sizes, rng):
    """Attention over the caches and a feed-forward part, both with a residual connection."""
    x = f"x.{layer}"

    def name(part):
        return f"{part}.{layer}"

    def dense(source, part, rows=sizes.hidden, columns=sizes.hidden):
        weights[name(f"w_{part}")] = rng.standard_normal((rows, columns)) * rows**-0.5
        return helper.make_node("MatMul", [source, name(f"w_{part}")], [name(part)])

    nodes = []
    for part in ("query", "key", "value"):
        nodes += [
            dense(x, part),
            helper.make_node("Reshape", [name(part), "split_shape"], [name(f"{part}_split")]),
            helper.make_node(
                "Transpose", [name(f"{part}_split")], [name(f"{part}_heads")], perm=[0, 2, 1, 3]
            ),
        ]
    for part in ("key", "value"):
        past = name(f"past_{part}")
        nodes += [
            helper.make_node(
                "CtxScatter",
                [past, "position_ids", name(f"{part}_heads")],
                [f"{past}_RetainedState"],
                domain=DOMAIN,
            ),
            helper.make_node(
                "CtxGather", [f"{past}_RetainedState", "rows"], [name(f"all_{part}")], domain=DOMAIN
            ),
        ]
    return [
        *nodes,
        helper.make_node("Transpose", [name("all_key")], [name("keys")], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", [name("query_heads"), name("keys")], [name("products")]),
        helper.make_node("Mul", [name("products"), "scale"], [name("scores")]),
        helper.make_node("Where", ["hidden_slots", "masked", name("scores")], [name("seen")]),
        helper.make_node("Softmax", [name("seen")], [name("attention")], axis=-1),
        helper.make_node("MatMul", [name("attention"), name("all_value")], [name("mixed")]),
        helper.make_node("Transpose", [name("mixed")], [name("mixed_rows")], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", [name("mixed_rows"), "join_shape"], [name("joined")]),
        dense(name("joined"), "output"),
        helper.make_node("Add", [x, name("output")], [name("attended")]),
        dense(name("attended"), "up", sizes.hidden, 2 * sizes.hidden),
        helper.make_node("Tanh", [name("up")], [name("bent")]),
        dense(name("bent"), "down", 2 * sizes.hidden, sizes.hidden),
        helper.make_node("Add", [name("attended"), name("down")], [f"x.{layer + 1}"]),
    ]


def oracle_model(model):
    """Make the same decoder for onnxruntime, which knows no padding: it needs places inside the cache.

    The caller gives no padding; rows behind the last position are read from slot 0, and masked like before.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.name == "outside":
            tensor.CopyFrom(numpy_helper.from_array(np.int64(0), "outside"))
    return copy
