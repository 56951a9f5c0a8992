"""Small models with nodes that lose precision, and samples for the models."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def model_of(nodes, inputs, outputs, constants=None, opset=17):
    """Build a model of nodes ``(operator, inputs, output, attributes)`` and of names with shapes."""
    made = [
        helper.make_node(operator, list(read), [output], name=f"node_{output}", **attributes)
        for operator, read, output, attributes in nodes
    ]
    graph = helper.make_graph(
        made,
        "planted",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(values), name) for name, values in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model


def node(operator, read, output, **attributes):
    return operator, read.split(), output, attributes


def engine(model):
    """Open a model in onnxruntime."""
    import onnxruntime

    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def samples(inputs, count=5, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return [
        {name: (scale * rng.standard_normal(shape)).astype(np.float32) for name, shape in inputs.items()}
        for _ in range(count)
    ]


def overflowing(places=(1,), length=4, width=16):
    """A chain of normalizations; in some of them, squares exceed float16. Also returns these nodes."""
    rng = np.random.default_rng(3)
    nodes, constants, planted = [], {"root": np.array(1 / width, np.float32)}, []
    value = "x"
    for at in range(length):
        size = 300.0 if at in places else 1.0
        constants[f"w{at}"] = (size * rng.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32)
        nodes += [
            node("MatMul", f"{value} w{at}", f"wide{at}"),
            node("Mul", f"wide{at} wide{at}", f"square{at}"),
            node("ReduceSum", f"square{at} axes", f"sum{at}", keepdims=1),
            node("Mul", f"sum{at} root", f"mean{at}"),
            node("Sqrt", f"mean{at}", f"deviation{at}"),
            node("Div", f"wide{at} deviation{at}", f"y{at}"),
        ]
        if at in places:
            planted += [f"square{at}", f"sum{at}", f"mean{at}"]
        value = f"y{at}"
    constants["axes"] = np.array([-1], np.int64)
    inputs = {"x": [4, width]}
    return model_of(nodes, inputs, {value: [4, width]}, constants), samples(inputs), planted


def cancelling():
    """Adds a large number and subtracts it again, so float16 loses the original value."""
    constants = {"large": np.array(3000, np.float32), "w": np.eye(16, dtype=np.float32)}
    nodes = [
        node("MatMul", "x w", "plain"),
        node("Add", "plain large", "raised"),
        node("Sub", "raised large", "lowered"),
        node("Tanh", "lowered", "y"),
    ]
    inputs = {"x": [4, 16]}
    return model_of(nodes, inputs, {"y": [4, 16]}, constants), samples(inputs), ["raised", "lowered"]


def underflowing():
    """Multiplies small numbers and scales the products up again."""
    constants = {"small": np.array(2.0**-12, np.float32), "back": np.array(2.0**12, np.float32)}
    nodes = [
        node("Mul", "x small", "less"),
        node("Mul", "less small", "least"),
        node("Mul", "least back", "more"),
        node("Mul", "more back", "y"),
    ]
    inputs = {"x": [4, 16]}
    return model_of(nodes, inputs, {"y": [4, 16]}, constants), samples(inputs, scale=0.05), ["least"]


def convolutional(outlier=1.0):
    """Two convolutions and a dense layer; one channel of the first can be much larger than the others."""
    rng = np.random.default_rng(5)
    first = rng.standard_normal((16, 3, 3, 3)).astype(np.float32) / 5
    first[2] *= outlier
    constants = {
        "k1": first,
        "b1": rng.standard_normal(16).astype(np.float32) / 10,
        "k2": rng.standard_normal((8, 16, 3, 3)).astype(np.float32) / 12,
        "w": rng.standard_normal((8, 10)).astype(np.float32),
        "b": rng.standard_normal(10).astype(np.float32),
    }
    # Large values count as much as other values.
    constants["k2"][:, 2] /= outlier
    nodes = [
        node("Conv", "x k1 b1", "c1", pads=[1, 1, 1, 1]),
        node("Relu", "c1", "r1"),
        node("Conv", "r1 k2", "c2", pads=[1, 1, 1, 1]),
        node("Sigmoid", "c2", "s2"),
        node("GlobalAveragePool", "s2", "pooled"),
        node("Flatten", "pooled", "flat"),
        node("Gemm", "flat w b", "logits"),
        node("Softmax", "logits", "y"),
    ]
    inputs = {"x": [2, 3, 12, 12]}
    return model_of(nodes, inputs, {"y": [2, 10]}, constants), samples(inputs)


def attention(width=32, tokens=8, layers=2):
    """A small transformer of simple operators, with wide matrices for MXFP6."""
    rng = np.random.default_rng(7)
    constants = {
        "axes": np.array([-1], np.int64),
        "tiny": np.array(1e-5, np.float32),
        "scale": np.array(width**-0.5, np.float32),
    }
    nodes, value = [], "x"
    for at in range(layers):
        for name in ("q", "k", "v", "o"):
            constants[f"{name}{at}"] = rng.standard_normal((width, width)).astype(np.float32) / width**0.5
        nodes += [
            node("ReduceMean", value, f"mean{at}", axes=[-1]),
            node("Sub", f"{value} mean{at}", f"centered{at}"),
            node("Mul", f"centered{at} centered{at}", f"squares{at}"),
            node("ReduceMean", f"squares{at}", f"variance{at}", axes=[-1]),
            node("Add", f"variance{at} tiny", f"raised{at}"),
            node("Sqrt", f"raised{at}", f"deviation{at}"),
            node("Div", f"centered{at} deviation{at}", f"normal{at}"),
            node("MatMul", f"normal{at} q{at}", f"query{at}"),
            node("MatMul", f"normal{at} k{at}", f"key{at}"),
            node("MatMul", f"normal{at} v{at}", f"values{at}"),
            node("Transpose", f"key{at}", f"turned{at}", perm=[0, 2, 1]),
            node("MatMul", f"query{at} turned{at}", f"raw{at}"),
            node("Mul", f"raw{at} scale", f"scores{at}"),
            node("Softmax", f"scores{at}", f"weights{at}", axis=-1),
            node("MatMul", f"weights{at} values{at}", f"mixed{at}"),
            node("MatMul", f"mixed{at} o{at}", f"out{at}"),
            node("Add", f"{value} out{at}", f"layer{at}"),
        ]
        value = f"layer{at}"
    inputs = {"x": [1, tokens, width]}
    return model_of(nodes, inputs, {value: [1, tokens, width]}, constants), samples(inputs)


def branching():
    """An If whose branches read outer values; a sum selects the branch."""
    value = helper.make_tensor_value_info
    then_graph = helper.make_graph(
        [helper.make_node("Mul", ["inner", "inner"], ["squared"])],
        "then",
        [],
        [value("squared", FLOAT, [4, 16])],
    )
    else_graph = helper.make_graph(
        [helper.make_node("Sub", ["inner", "one"], ["less"])], "else", [], [value("less", FLOAT, [4, 16])]
    )
    constants = {"one": np.array(1, np.float32), "w": np.eye(16, dtype=np.float32)[::-1].copy()}
    nodes = [
        node("MatMul", "x w", "inner"),
        node("ReduceSum", "inner", "total", keepdims=0),
        node("Less", "total one", "is_small"),
        ("If", ["is_small"], "chosen", {"then_branch": then_graph, "else_branch": else_graph}),
        node("Tanh", "chosen", "y"),
    ]
    inputs = {"x": [4, 16]}
    return model_of(nodes, inputs, {"y": [4, 16]}, constants), samples(inputs)


def calls_of_a_function(calls=3, width=16):
    """A function with a sum of squares, called in a chain; every call overflows."""
    body = [
        helper.make_node("Mul", ["v", "v"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["mean"], axes=[-1]),
        helper.make_node("Sqrt", ["mean"], ["deviation"]),
        helper.make_node("Div", ["v", "deviation"], ["normal"]),
    ]
    function = helper.make_function(
        "local", "Normalize", ["v"], ["normal"], body, [helper.make_opsetid("", 17)]
    )
    rng = np.random.default_rng(13)
    value, nodes, constants = "x", [], []
    for at in range(calls):
        weight = (300 * rng.standard_normal((width, width)) / width**0.5).astype(np.float32)
        constants.append(numpy_helper.from_array(weight, f"w{at}"))
        nodes += [
            helper.make_node("MatMul", [value, f"w{at}"], [f"wide{at}"], name=f"product{at}"),
            helper.make_node("Normalize", [f"wide{at}"], [f"y{at}"], domain="local", name=f"call{at}"),
        ]
        value = f"y{at}"
    graph = helper.make_graph(
        nodes,
        "calls",
        [helper.make_tensor_value_info("x", FLOAT, [4, width])],
        [helper.make_tensor_value_info(value, FLOAT, [4, width])],
        constants,
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=8)
    return model, samples({"x": [4, width]})


def mixed_faults(kinds, width=16):
    """A chain of blocks, each without a fault or with one planted fault; also returns name -> reason.

    Kinds are ``calm``, ``overflow``, ``cancellation`` and ``underflow``. Every block reads and writes values
    of about the size 1.
    """
    rng = np.random.default_rng(17)
    constants = {
        "large": np.array(3000, np.float32),
        "wide": np.array(400, np.float32),
        "narrow": np.array(1 / 400, np.float32),
        "small": np.array(2.0**-12, np.float32),
        "back": np.array(2.0**12, np.float32),
    }
    nodes, planted, value = [], {}, "x"
    for at, kind in enumerate(kinds):
        constants[f"w{at}"] = np.linalg.qr(rng.standard_normal((width, width)))[0].astype(np.float32)
        nodes.append(node("MatMul", f"{value} w{at}", f"turned{at}"))
        value = f"turned{at}"
        if kind == "overflow":
            nodes += [
                node("Mul", f"{value} wide", f"wide{at}"),
                node("Mul", f"wide{at} wide{at}", f"square{at}"),
                node("Sqrt", f"square{at}", f"size{at}"),
                node("Mul", f"size{at} narrow", f"y{at}"),
            ]
            planted[f"square{at}"] = "overflow"
        elif kind == "cancellation":
            nodes += [
                node("Add", f"{value} large", f"raised{at}"),
                node("Sub", f"raised{at} large", f"y{at}"),
            ]
            planted[f"y{at}"] = "cancellation"
        elif kind == "underflow":
            nodes += [
                node("Mul", f"{value} small", f"less{at}"),
                node("Mul", f"less{at} small", f"least{at}"),
                node("Mul", f"least{at} back", f"more{at}"),
                node("Mul", f"more{at} back", f"y{at}"),
            ]
            planted[f"least{at}"] = "underflow"
        else:
            nodes.append(node("Tanh", value, f"y{at}"))
        value = f"y{at}"
    inputs = {"x": [4, width]}
    return model_of(nodes, inputs, {value: [4, width]}, constants), samples(inputs), planted


def flat_decoder(outlier=None, context=24, width=16, vocabulary=12):
    """A decoder of one layer whose cache is [1, slots, width]; padding is written to the last slot.

    `outlier` is a channel whose values are a thousand times as large as the others; the weights that read it
    are smaller by the same factor.
    """
    rng = np.random.default_rng(23)

    def matrix(rows, columns):
        return (rng.standard_normal((rows, columns)) / rows**0.5).astype(np.float32)

    integers = {"last": context - 1, "none": 0, "slots": np.arange(context).reshape(1, 1, context)}
    constants = {
        "embed": rng.standard_normal((vocabulary, width)).astype(np.float32),
        **{name: matrix(width, width) for name in ("wq", "wk", "wv", "wo")},
        "head": matrix(width, vocabulary),
        "hidden": np.array(-1e4, np.float32),
        "root": np.array(width**-0.5, np.float32),
        "back": np.array([-1], np.int64),
        **{name: np.array(value, np.int64) for name, value in integers.items()},
    }
    if outlier is not None:
        constants["wv"][:, outlier] *= 1000
        constants["wo"][outlier] /= 1000
    nodes = [
        node("Gather", "embed input_ids", "x"),
        node("MatMul", "x wq", "query"),
        node("MatMul", "x wk", "key"),
        node("MatMul", "x wv", "value"),
        node("Less", "position_ids none", "is_padding"),
        node("Where", "is_padding last position_ids", "places"),
        node("Unsqueeze", "places back", "at"),
        node("Shape", "at", "count"),
        node("Expand", "none count", "row"),
        node("Concat", "row at", "indices", axis=-1),
        node("ScatterND", "past_key indices key", "past_key_RetainedState"),
        node("ScatterND", "past_value indices value", "past_value_RetainedState"),
        node("Transpose", "past_key_RetainedState", "turned", perm=[0, 2, 1]),
        node("MatMul", "query turned", "products"),
        node("Mul", "products root", "scores"),
        node("Greater", "slots at", "is_hidden"),
        node("Where", "is_hidden hidden scores", "masked"),
        node("Softmax", "masked", "shares", axis=-1),
        node("MatMul", "shares past_value_RetainedState", "mixed"),
        node("MatMul", "mixed wo", "out"),
        node("Add", "x out", "layer"),
        node("Tanh", "layer", "bounded"),
        node("MatMul", "bounded head", "logits"),
    ]
    made = [
        helper.make_node(operator, list(read), [output], name=f"node_{output}", **attributes)
        for operator, read, output, attributes in nodes
    ]
    value, tokens, cache = helper.make_tensor_value_info, ["batch_size", "seq_len"], [1, context, width]
    caches = ("past_key", "past_value")
    graph = helper.make_graph(
        made,
        "flat",
        [
            *(value(name, TensorProto.INT64, tokens) for name in ("input_ids", "position_ids")),
            *(value(name, FLOAT, cache) for name in caches),
        ],
        [
            value("logits", FLOAT, [*tokens, vocabulary]),
            *(value(f"{name}_RetainedState", FLOAT, cache) for name in caches),
        ],
        [numpy_helper.from_array(np.asarray(values), name) for name, values in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def planted_transformer(faults, width=16, tokens=6):
    """A transformer with one planted fault in each layer; also returns name -> reason, and the nodes to keep.

    Faults are ``calm``, ``overflow`` (in the variance of the normalization), ``cancellation`` (in the sum
    after the attention), ``underflow`` (in the scores) and ``outlier channel`` (of the values, for integers).
    """
    rng = np.random.default_rng(31)
    constants = {
        "tiny": np.array(1e-5, np.float32),
        "scale": np.array(width**-0.5, np.float32),
        "wide": np.array(500, np.float32),
        "large": np.array(3000, np.float32),
        "small": np.array(2.0**-13, np.float32),
        "back": np.array(2.0**13, np.float32),
    }
    nodes, planted, kept, value = [], {}, set(), "x"
    for at, fault in enumerate(faults):
        for name in ("q", "k", "v", "o"):
            turned = np.linalg.qr(rng.standard_normal((width, width)))[0]
            constants[f"{name}{at}"] = turned.astype(np.float32)
        centered = f"centered{at}"
        nodes += [
            node("ReduceMean", value, f"mean{at}", axes=[-1]),
            node("Sub", f"{value} mean{at}", centered),
        ]
        if fault == "overflow":
            nodes.append(node("Mul", f"{centered} wide", f"wide{at}"))
            centered = f"wide{at}"
            names = [f"{name}{at}" for name in ("squares", "variance", "raised")]
            planted |= dict.fromkeys(names, "overflow")
            # Nodes that read an infinite variance in float16 return infinity.
            kept |= {*names, f"deviation{at}"}
        if fault == "outlier channel":
            place = at % width
            constants[f"v{at}"][:, place] *= 1000
            constants[f"o{at}"][place] /= 1000
        nodes += [
            node("Mul", f"{centered} {centered}", f"squares{at}"),
            node("ReduceMean", f"squares{at}", f"variance{at}", axes=[-1]),
            node("Add", f"variance{at} tiny", f"raised{at}"),
            node("Sqrt", f"raised{at}", f"deviation{at}"),
            node("Div", f"{centered} deviation{at}", f"normal{at}"),
            node("MatMul", f"normal{at} q{at}", f"query{at}"),
            node("MatMul", f"normal{at} k{at}", f"key{at}"),
            node("MatMul", f"normal{at} v{at}", f"values{at}"),
            node("Transpose", f"key{at}", f"turned{at}", perm=[0, 2, 1]),
            node("MatMul", f"query{at} turned{at}", f"raw{at}"),
            node("Mul", f"raw{at} scale", f"scores{at}"),
        ]
        scores = f"scores{at}"
        if fault == "underflow":
            nodes += [
                node("Mul", f"{scores} small", f"less{at}"),
                node("Mul", f"less{at} small", f"least{at}"),
                node("Mul", f"least{at} back", f"more{at}"),
                node("Mul", f"more{at} back", f"restored{at}"),
            ]
            scores = f"restored{at}"
            planted[f"least{at}"] = "underflow"
            kept |= {f"least{at}", f"more{at}"}
        nodes += [
            node("Softmax", scores, f"shares{at}", axis=-1),
            node("MatMul", f"shares{at} values{at}", f"mixed{at}"),
            node("MatMul", f"mixed{at} o{at}", f"out{at}"),
        ]
        out = f"out{at}"
        if fault == "cancellation":
            nodes += [node("Add", f"{out} large", f"high{at}"), node("Sub", f"high{at} large", f"low{at}")]
            planted[f"low{at}"] = "cancellation"
            # The product rounds together with its addend.
            kept |= {out, f"high{at}", f"low{at}"}
            out = f"low{at}"
        nodes.append(node("Add", f"{value} {out}", f"layer{at}"))
        value = f"layer{at}"
    inputs = {"x": [1, tokens, width]}
    return model_of(nodes, inputs, {value: [1, tokens, width]}, constants), samples(inputs), planted, kept
