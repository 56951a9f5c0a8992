"""A decoder in the form of exporters for the card, and the same decoder with explicit caches for onnxruntime.

In the exporters' form, key and value caches are inputs, and their next values are retained state. Functions
of the domain ``com.qualcomm.cloud`` write and read the caches, with index tensors of shape [1] where ONNX
requires scalars. The normalization is a function of ``com.qti.aisw.onnx`` that mixes element types.

Position -1 is padding: its row is written at 2^31 - 1, outside the cache. Rows after the last position are
also read from there. Logits are those of the largest position of each row. With `slots`, `batch_index`
selects rows of the caches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
CLOUD = "com.qualcomm.cloud"
AISW = "com.qti.aisw.onnx"
LOCAL = "pkg.layers"
OUTSIDE = np.iinfo(np.int32).max
#: The first operator set in which the axes of a reduction are an input.
AXES_AS_INPUT = 18


@dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder, and the variants of exporters."""

    layers: int = 2
    heads: int = 4
    #: Heads of keys and values; each serves `heads / groups` heads of queries.
    groups: int = 2
    width: int = 4
    #: Width between the two products of a layer's last part; by default, twice the hidden size.
    inner: int | None = None
    vocabulary: int = 23
    context: int = 32
    #: True if `batch_index` selects rows of the caches (continuous batching).
    slots: bool = False
    #: True if every layer is a function (sub-functions).
    layer_functions: bool = False
    #: Value of the scores of hidden slots.
    masked: float = -np.inf
    #: Number of slots, including its own, to which a position attends; None for all.
    window: int | None = None
    #: Element type of weights, caches and all values between them.
    elem_type: int = TensorProto.FLOAT
    opset: int = OPSET
    #: True if scores are divided by a value that the graph computes from the width of values.
    computed_scale: bool = False
    #: True if the size of a separate input is the number of slots that are read (compute context lengths).
    compute_lengths: bool = False

    @property
    def hidden(self):
        return self.heads * self.width

    @property
    def caches(self):
        """Names of the caches in the order of the inputs."""
        return [f"past_{kind}.{layer}" for layer in range(self.layers) for kind in ("key", "value")]

    def cache_shape(self, batch=1):
        return (batch, self.groups, self.context, self.width)

    @cached_property
    def dtype(self):
        return helper.tensor_dtype_to_np_dtype(self.elem_type)


def specializations(prefill=8, batch=1, context=32, slots=None, compute_lengths=()):
    """Name the sets of shapes of a decoder, in the order and with the keys of exporters' files.

    There are two sets, or with `compute_lengths` two sets for each length.
    """
    if compute_lengths:
        return [
            {
                "name": f"{entry['name']}{length}",
                "symbols": {**entry["symbols"], "comp_ctx_lengths": str(length)},
            }
            for length in compute_lengths
            for entry in specializations(prefill, batch, context, slots)
        ]
    common = {"batch_size": str(batch), "ctx_len": str(context)}
    if slots is None:
        return [
            {"name": "Prefill", "symbols": {**common, "seq_len": str(prefill)}},
            {"name": "Decode", "symbols": {**common, "seq_len": "1"}},
        ]
    common["full_batch_size"] = str(slots)
    one = {**common, "batch_size": "1", "full_batch_exec_size": "1"}
    return [
        {"name": "Prefill", "symbols": {**one, "seq_len": str(prefill)}},
        {"name": "Decode", "symbols": {**common, "batch_size": str(slots), "seq_len": "1"}},
    ]


class Body:
    """Nodes of a graph or function under construction; results have the names of their nodes."""

    def __init__(self, opset=OPSET, prefix=""):
        self.opset = opset
        self.prefix = prefix
        self.nodes = []

    def add(self, operator, *inputs, output=None, domain="", **attributes):
        name = f"{self.prefix}{operator}_{len(self.nodes)}"
        output = output or f"{name}_output_0"
        self.nodes.append(
            helper.make_node(operator, list(inputs), [output], name=name, domain=domain, **attributes)
        )
        return output

    def ints(self, values):
        return self.constant(np.array(values, np.int64))

    def constant(self, array):
        return self.add("Constant", value=numpy_helper.from_array(np.asarray(array)))

    def size(self, source, axis):
        """One size of a tensor, as a tensor of shape [1]."""
        return self.add("Gather", self.add("Shape", source), self.ints([axis]))

    def unsqueeze(self, source, *axes):
        return self.add("Unsqueeze", source, self.ints(axes))

    def reduce(self, operator, source, axis):
        if self.opset < AXES_AS_INPUT:
            return self.add(operator, source, axes=[axis], keepdims=1)
        return self.add(operator, source, self.ints([axis]), keepdims=1)

    def counted(self, size, axes, shape):
        """Count from 0 to a size of shape [1], and broadcast the numbers to a shape."""
        zero, one = (self.add("Constant", value_ints=[value]) for value in (0, 1))
        numbers = self.add("Range", zero, size, one)
        return self.add("Expand", self.unsqueeze(numbers, *axes), shape)

    def function(self, domain, name, inputs, output, attributes=()):
        """Finish the body as a function, whose output is the result of the last node."""
        last = self.nodes[-1]
        last.output[0] = output
        imports = [helper.make_opsetid("", self.opset)]
        used = {node.domain for node in self.nodes} - {""}
        imports += [helper.make_opsetid(d, 1) for d in sorted(used)]
        return helper.make_function(domain, name, inputs, [output], self.nodes, imports, list(attributes))


def scatter_function(opset=OPSET, *, slots=False):
    """``CtxScatter[CB](data, [batch_index,] position_ids, updates)``: write rows at their positions."""
    body = Body(opset)
    rows_from = "batch_index" if slots else "data"
    batch, heads, count = body.size(rows_from, 0), body.size("data", 1), body.size("position_ids", 1)
    one = body.add("Constant", value_ints=[1])
    shape = body.add("Concat", batch, heads, count, one, axis=0)
    if slots:
        rows = body.add("Expand", body.unsqueeze("batch_index", 2, 3), shape)
    else:
        rows = body.counted(batch, (1, 2, 3), shape)
    of_heads = body.counted(heads, (0, 2, 3), shape)
    positions = body.add("Expand", body.unsqueeze("position_ids", 1, 3), shape)
    places = body.add("Concat", rows, of_heads, positions, axis=3)
    body.add("ScatterND", "data", places, "updates")
    inputs = ["data", *(["batch_index"] if slots else []), "position_ids", "updates"]
    return body.function(CLOUD, "CtxScatterCB" if slots else "CtxScatter", inputs, "written")


def gather_function(opset=OPSET, *, slots=False):
    """``CtxGather[CB](data, [batch_index,] ctx_indices, comp_ctx_len)``: read rows of a cache."""
    body = Body(opset)
    if slots:
        batch, heads, count = body.size("batch_index", 0), body.size("data", 1), body.size("ctx_indices", 2)
        one = body.add("Constant", value_ints=[1])
        flat = [body.add("Reshape", size, body.ints([1])) for size in (batch, heads, count)]
        shape = body.add("Concat", *flat, one, axis=0)
        rows = body.add("Expand", body.unsqueeze("batch_index", 2, 3), shape)
        of_heads = body.counted(heads, (0, 2, 3), shape)
        positions = body.add("Expand", body.unsqueeze("ctx_indices", 3), shape)
        body.add("GatherND", "data", body.add("Concat", rows, of_heads, positions, axis=3))
        inputs = ["data", "batch_index", "ctx_indices", "comp_ctx_len"]
        return body.function(CLOUD, "CtxGatherCB", inputs, "read")
    outer = body.add("Slice", body.add("Shape", "data"), body.ints([0]), body.ints([2]), body.ints([0]))
    shape = body.add("Concat", outer, body.add("Reshape", "comp_ctx_len", body.ints([1])), axis=0)
    places = body.unsqueeze(body.add("Expand", "ctx_indices", shape), -1)
    body.add("GatherND", "data", places, batch_dims=2)
    return body.function(CLOUD, "CtxGather", ["data", "ctx_indices", "comp_ctx_len"], "read")


def norm_function(opset=OPSET):
    """``CustomRMSNorm(hidden_states, weight)``: a body for float32, which exporters write for every type."""
    body = Body(opset)
    weight = body.add("Cast", "weight", to=TensorProto.FLOAT)
    squares = body.add("Pow", "hidden_states", body.add("Constant", value_int=2))
    mean = body.reduce("ReduceMean", squares, -1)
    epsilon = body.add("Constant")
    body.nodes[-1].attribute.append(
        onnx.AttributeProto(name="value_float", ref_attr_name="epsilon", type=onnx.AttributeProto.FLOAT)
    )
    epsilon = body.add("Expand", epsilon, body.add("Shape", mean))
    root = body.add("Sqrt", body.add("Add", mean, epsilon))
    body.add("Mul", weight, body.add("Mul", "hidden_states", body.add("Reciprocal", root)))
    return body.function(AISW, "CustomRMSNorm", ["hidden_states", "weight"], "normalized", ["epsilon"])


def weight_shapes(sizes):
    """List the weights of a decoder, except the tables of angles, with their shapes."""
    hidden, kept = sizes.hidden, sizes.groups * sizes.width
    inner = sizes.inner or 2 * hidden
    layer = {
        "input_norm": (hidden,),
        "q_proj": (hidden, hidden),
        "k_proj": (hidden, kept),
        "v_proj": (hidden, kept),
        "o_proj": (hidden, hidden),
        "post_norm": (hidden,),
        "gate_proj": (hidden, inner),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }
    shapes = {"embed_tokens": (sizes.vocabulary, hidden)}
    shapes |= {f"layers.{at}.{name}": shape for at in range(sizes.layers) for name, shape in layer.items()}
    return shapes | {"norm": (hidden,), "lm_head": (hidden, sizes.vocabulary)}


def angle_tables(sizes):
    """Compute the cosines and sines of every position."""
    angles = np.arange(sizes.context)[:, None] * 100.0 ** (-2 * np.arange(sizes.width // 2) / sizes.width)
    tables = {"cos": np.tile(np.cos(angles), 2), "sin": np.tile(np.sin(angles), 2)}
    return {name: value.astype(np.float32).astype(sizes.dtype) for name, value in tables.items()}


def _weights(sizes, seed):
    """Draw the weights of a decoder; matrices keep the magnitude of their operands."""
    rng = np.random.default_rng(seed)

    def drawn(name, shape):
        if len(shape) == 1:
            return rng.uniform(0.5, 1.5, shape)
        return rng.standard_normal(shape) * (1 if name == "embed_tokens" else shape[0] ** -0.5)

    weights = {name: drawn(name, shape) for name, shape in weight_shapes(sizes).items()}
    weights = {name: value.astype(np.float32).astype(sizes.dtype) for name, value in weights.items()}
    return weights | angle_tables(sizes)


class _Layers:
    """The parts of a decoder that do not depend on the location of its caches."""

    #: Inputs of a layer in addition to the hidden states and its own caches.
    SHARED = ("position_ids", "sin", "cos", "hidden_slots")

    def __init__(self, body, sizes):
        self.body = body
        self.sizes = sizes

    def split(self, source, count):
        body, width = self.body, self.sizes.width
        shape = body.add(
            "Concat", body.size(source, 0), body.size(source, 1), body.ints([count, width]), axis=0
        )
        return body.add("Transpose", body.add("Reshape", source, shape), perm=[0, 2, 1, 3])

    def rotate(self, source, sin, cos):
        """Rotate pairs of a head by angles that grow with the position."""
        body, half = self.body, self.sizes.width // 2
        low = body.add("Slice", source, body.ints([0]), body.ints([half]), body.ints([3]))
        high = body.add(
            "Slice", source, body.ints([half]), body.ints([np.iinfo(np.int64).max]), body.ints([3])
        )
        turned = body.add("Concat", body.add("Neg", high), low, axis=-1)
        return body.add("Add", body.add("Mul", source, cos), body.add("Mul", turned, sin))

    def repeat(self, source):
        """Copy the keys or values of a group to each of its heads of queries."""
        body, times = self.body, self.sizes.heads // self.sizes.groups
        sizes = [body.size(source, axis) for axis in range(4)]
        spread = body.add("Concat", *sizes[:2], body.ints([times]), *sizes[2:], axis=0)
        flat = body.add("Concat", sizes[0], body.add("Mul", sizes[1], body.ints([times])), *sizes[2:], axis=0)
        return body.add("Reshape", body.add("Expand", body.unsqueeze(source, 2), spread), flat)

    def root_of_width(self, values):
        body = self.body
        last = body.add(
            "Slice",
            body.add("Shape", values),
            body.ints([-1]),
            body.ints([np.iinfo(np.int64).max]),
            body.ints([0]),
        )
        width = body.add("Cast", body.add("Squeeze", last, body.ints([0])), to=self.sizes.elem_type)
        return body.add("Pow", width, body.constant(np.asarray(0.5).astype(self.sizes.dtype)))

    def attend(self, query, keys, values, hidden_slots):
        """Softmax over the slots to which a position attends; other slots have minus infinity."""
        body, sizes = self.body, self.sizes
        factor = self.root_of_width(values) if sizes.computed_scale else None
        # If each head has its own keys, nothing is repeated.
        if sizes.heads > sizes.groups:
            keys, values = (self.repeat(part) for part in (keys, values))
        products = body.add("MatMul", query, body.add("Transpose", keys, perm=[0, 1, 3, 2]))
        if factor is None:
            number = np.asarray(sizes.width**-0.5).astype(sizes.dtype)
            scores = body.add("Mul", products, body.constant(number))
        else:
            scores = body.add("Div", products, factor)
        masked = body.add(
            "ConstantOfShape",
            body.add("Shape", scores),
            value=numpy_helper.from_array(np.array([sizes.masked]).astype(sizes.dtype)),
        )
        seen = body.add("Softmax", body.add("Where", hidden_slots, masked, scores), axis=-1)
        mixed = body.add("Transpose", body.add("MatMul", seen, values), perm=[0, 2, 1, 3])
        shape = body.add("Concat", body.size(mixed, 0), body.size(mixed, 1), body.ints([-1]), axis=0)
        return body.add("Reshape", mixed, shape)

    def layer(self, x, weight, norm, cached):
        """One layer: `weight` returns names of its weights, `cached` returns keys and values of all slots."""
        body, sizes = self.body, self.sizes
        normal = norm(x, weight("input_norm"))
        query, key, value = (
            self.split(body.add("MatMul", normal, weight(f"{part}_proj")), count)
            for part, count in (("q", sizes.heads), ("k", sizes.groups), ("v", sizes.groups))
        )
        query, key = (self.rotate(part, "sin", "cos") for part in (query, key))
        keys, values = cached(key, value)
        mixed = self.attend(query, keys, values, "hidden_slots")
        x = body.add("Add", x, body.add("MatMul", mixed, weight("o_proj")))
        normal = norm(x, weight("post_norm"))
        gate = body.add("MatMul", normal, weight("gate_proj"))
        gate = body.add("Mul", gate, body.add("Sigmoid", gate))
        inner = body.add("Mul", gate, body.add("MatMul", normal, weight("up_proj")))
        return body.add("Add", x, body.add("MatMul", inner, weight("down_proj")))

    def hide(self, numbers, positions):
        """Mark the slots to which a position does not attend: later slots, and those before its window."""
        body = self.body
        hidden = body.add("Greater", numbers, positions)
        if self.sizes.window is not None:
            first = body.add("Sub", positions, body.constant(np.int64(self.sizes.window)))
            hidden = body.add("Or", hidden, body.add("LessOrEqual", numbers, first))
        body.add("Unsqueeze", hidden, body.ints([1]), output="hidden_slots")

    def angles(self, positions):
        for name in ("sin", "cos"):
            rows = self.body.add("Gather", f"table_{name}", positions)
            self.body.add("Unsqueeze", rows, self.body.ints([1]), output=name)

    def last_logits(self, x):
        """Logits of the largest position of each row: [batch, 1, vocabulary]."""
        body = self.body
        places = body.add("Cast", "position_ids", to=TensorProto.INT32)
        last = body.add("ArgMax", places, axis=1, keepdims=1)
        row = body.add("GatherElements", x, self._spread(last), axis=1)
        logits = body.add("MatMul", row, "lm_head")
        body.add("Cast", logits, to=TensorProto.FLOAT, output="logits")

    def _spread(self, last):
        body = self.body
        shape = body.add("Concat", body.size("position_ids", 0), body.ints([1, self.sizes.hidden]), axis=0)
        return body.add("Expand", body.unsqueeze(last, 2), shape)


def _cached_layer(layers, caches, results, x, weight):
    """One layer over caches that functions for the card write and read."""
    body, sizes = layers.body, layers.sizes
    slots = ["batch_index"] if sizes.slots else []
    suffix = "CB" if sizes.slots else ""

    def norm(source, weight):
        return body.add("CustomRMSNorm", source, weight, domain=AISW, epsilon=1e-6)

    def cached(key, value):
        padding = body.add("Less", "position_ids", body.constant(np.int64(0)))
        places = body.add("Where", padding, body.constant(np.int64(OUTSIDE)), "position_ids")
        written = [
            body.add(f"CtxScatter{suffix}", cache, *slots, places, part, domain=CLOUD, output=result)
            for cache, part, result in zip(caches, (key, value), results, strict=True)
        ]
        count = _slots_that_are_read(body, sizes, written[0])
        numbers = body.add("Range", body.constant(np.int64(0)), count, body.constant(np.int64(1)))
        numbers = body.unsqueeze(numbers, 0, 1)
        largest = body.unsqueeze(body.reduce("ReduceMax", "position_ids", 1), 1)
        unused = body.add("Greater", numbers, largest)
        indices = body.add("Where", unused, body.constant(np.int64(OUTSIDE)), numbers)
        keys, values = (
            body.add(f"CtxGather{suffix}", cache, *slots, indices, count, domain=CLOUD) for cache in written
        )
        # Values that were read in place of unused rows are cleared.
        nothing = body.constant(np.zeros((), sizes.dtype))
        return keys, body.add("Where", body.unsqueeze(unused, -1), nothing, values)

    return layers.layer(x, weight, norm, cached)


def _slots_that_are_read(body, sizes, cache):
    source, axis = ("comp_ctx_lengths", 0) if sizes.compute_lengths else (cache, 2)
    return body.add("Gather", body.add("Shape", source), body.constant(np.int64(axis)))


def decoder(sizes=Sizes(), seed=0, initializers=None):
    """Build the model: ``input_ids``, ``position_ids``, [``batch_index``] and caches to logits and caches.

    With `compute_lengths`, the last input that is not a cache is ``comp_ctx_lengths``, of which only the size
    is used. Weights are drawn, or are `initializers`, whose numbers can be in files.
    """
    body = Body(sizes.opset)
    layers = _Layers(body, sizes)
    x = body.add("Gather", "embed_tokens", "input_ids")
    count = _slots_that_are_read(body, sizes, "past_key.0")
    numbers = body.add("Range", body.constant(np.int64(0)), count, body.constant(np.int64(1)))
    layers.hide(body.add("Reshape", numbers, body.ints([1, 1, -1])), body.unsqueeze("position_ids", -1))
    layers.angles("position_ids")
    functions = [
        scatter_function(sizes.opset, slots=sizes.slots),
        gather_function(sizes.opset, slots=sizes.slots),
        norm_function(sizes.opset),
    ]
    for layer in range(sizes.layers):
        own = {name: f"layers.{layer}.{name}" for name in _names_of_layer(sizes)}
        caches = [f"past_{kind}.{layer}" for kind in ("key", "value")]
        results = [f"{cache}_RetainedState" for cache in caches]
        if sizes.layer_functions:
            shared = [*_Layers.SHARED, *(["batch_index"] if sizes.slots else [])]
            shared += ["comp_ctx_lengths"] if sizes.compute_lengths else []
            if layer == 0:
                functions.append(_layer_function(sizes, own, shared))
            output = f"layer_{layer}"
            body.nodes.append(
                helper.make_node(
                    "DecoderLayer",
                    [x, *shared, *caches, *own.values()],
                    [output, *results],
                    name=f"/model/layers.{layer}",
                    domain=LOCAL,
                )
            )
            x = output
        else:
            body.prefix = f"/model/layers.{layer}/"
            x = _cached_layer(layers, caches, results, x, own.__getitem__)
    body.prefix = ""
    layers.last_logits(body.add("CustomRMSNorm", x, "norm", domain=AISW, epsilon=1e-6))
    cache = ["full_batch_size" if sizes.slots else "batch_size", sizes.groups, "ctx_len", sizes.width]
    rows = ["batch_size", "seq_len"]
    ints = [("input_ids", rows), ("position_ids", rows)]
    ints += [("batch_index", ["batch_size", 1])] if sizes.slots else []
    graph = helper.make_graph(
        body.nodes,
        "decoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in ints]
        + [
            helper.make_tensor_value_info(name, TensorProto.INT8, [name])
            for name in ["comp_ctx_lengths"]
            if sizes.compute_lengths
        ]
        + [helper.make_tensor_value_info(name, sizes.elem_type, cache) for name in sizes.caches],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch_size", 1, sizes.vocabulary])]
        + [
            helper.make_tensor_value_info(f"{name}_RetainedState", sizes.elem_type, cache)
            for name in sizes.caches
        ],
        _initializers(_weights(sizes, seed)) if initializers is None else initializers,
    )
    domains = [AISW, CLOUD, *([LOCAL] if sizes.layer_functions else [])]
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", sizes.opset), *(helper.make_opsetid(d, 1) for d in domains)],
        functions=functions,
        ir_version=8,
    )


def _names_of_layer(sizes):
    return [name.removeprefix("layers.0.") for name in weight_shapes(sizes) if name.startswith("layers.0.")]


def _initializers(weights):
    renamed = {name: f"table_{name}" for name in ("sin", "cos")}
    return [numpy_helper.from_array(array, renamed.get(name, name)) for name, array in weights.items()]


def _layer_function(sizes, own, shared):
    """Write one layer as a function; its weights are operands, so all layers share the function."""
    body = Body(sizes.opset)
    results = ["key_written", "value_written"]
    x = _cached_layer(_Layers(body, sizes), ["past_key", "past_value"], results, "hidden", lambda name: name)
    imports = [
        helper.make_opsetid("", sizes.opset),
        helper.make_opsetid(AISW, 1),
        helper.make_opsetid(CLOUD, 1),
    ]
    return helper.make_function(
        LOCAL,
        "DecoderLayer",
        ["hidden", *shared, "past_key", "past_value", *own],
        [x, *results],
        body.nodes,
        imports,
    )


def oracle_model(sizes=Sizes(), seed=0):
    """Build the same decoder with caches that grow: standard ONNX in float32, for onnxruntime.

    Inputs are ``input_ids`` and ``position_ids`` without padding, and caches with the earlier rows.
    """
    body = Body(sizes.opset)
    wide = replace(sizes, elem_type=TensorProto.FLOAT)
    weights = {name: array.astype(np.float32) for name, array in _weights(sizes, seed).items()}
    layers = _Layers(body, wide)

    def norm(source, weight):
        mean = body.reduce("ReduceMean", body.add("Mul", source, source), -1)
        root = body.add("Sqrt", body.add("Add", mean, body.constant(np.float32(1e-6))))
        return body.add("Mul", body.add("Div", source, root), weight)

    x = body.add("Gather", "embed_tokens", "input_ids")
    before = body.add("Gather", body.add("Shape", "past_key.0"), body.constant(np.int64(2)))
    new = body.add("Gather", body.add("Shape", "input_ids"), body.constant(np.int64(1)))
    numbers = body.add(
        "Range", body.constant(np.int64(0)), body.add("Add", before, new), body.constant(np.int64(1))
    )
    layers.hide(body.unsqueeze(numbers, 0, 1), body.unsqueeze("position_ids", -1))
    layers.angles("position_ids")
    for layer in range(sizes.layers):

        def cached(key, value, layer=layer):
            return [
                body.add(
                    "Concat",
                    f"past_{kind}.{layer}",
                    part,
                    axis=2,
                    output=f"past_{kind}.{layer}_RetainedState",
                )
                for kind, part in (("key", key), ("value", value))
            ]

        x = layers.layer(x, f"layers.{layer}.{{}}".format, norm, cached)
    layers.last_logits(norm(x, "norm"))
    cache = ["batch_size", sizes.groups, None, sizes.width]
    graph = helper.make_graph(
        body.nodes,
        "oracle",
        [
            helper.make_tensor_value_info(n, TensorProto.INT64, ["batch_size", "seq_len"])
            for n in ("input_ids", "position_ids")
        ]
        + [helper.make_tensor_value_info(name, TensorProto.FLOAT, cache) for name in sizes.caches],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch_size", 1, sizes.vocabulary])]
        + [
            helper.make_tensor_value_info(f"{name}_RetainedState", TensorProto.FLOAT, cache)
            for name in sizes.caches
        ],
        _initializers(weights),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", sizes.opset)], ir_version=8)


class Oracle:
    """The decoder in onnxruntime; the caller stores the caches of one sequence."""

    def __init__(self, sizes=Sizes(), seed=0):
        import session_models

        self.sizes = sizes
        self.engine = session_models.engine(oracle_model(sizes, seed))
        self.restart()

    def restart(self):
        shape = (1, self.sizes.groups, 0, self.sizes.width)
        self.caches = {name: np.zeros(shape, np.float32) for name in self.sizes.caches}

    def step(self, tokens):
        """Feed tokens that follow the earlier ones; return the logits of the last token."""
        start = self.caches["past_key.0"].shape[2]
        tokens = np.atleast_2d(np.asarray(tokens, np.int64))
        positions = np.arange(start, start + tokens.shape[1])[None]
        logits, *caches = self.engine.run(
            None, {"input_ids": tokens, "position_ids": positions} | self.caches
        )
        self.caches = dict(zip(self.sizes.caches, caches, strict=True))
        return logits[0, 0]
