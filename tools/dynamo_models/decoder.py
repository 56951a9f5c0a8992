"""Decoders whose caches are inputs and outputs, written and read by functions that a card has.

The functions have the names, domains and operands that exporters for the card use. Caches are ``[batch,
heads, context, width]``, and positions are ``[batch, rows]``. Sizes inside the bodies have the shape [1],
even as operands of ``Range``. Position -1 is padding: the card writes nothing for it.
"""

from __future__ import annotations

from typing import Any

import onnxscript
import torch
from onnxscript import FLOAT, INT64
from onnxscript import opset18 as op
from torch import nn
from torch.export import Dim
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from dynamo_models.recipe import Case, Inputs, Recipe, integers, seeded

CARD = onnxscript.values.Opset("com.qualcomm.cloud", 1)
BUILT_IN = onnxscript.values.Opset("com.qti.aisw.onnx", 1)

VOCABULARY, HIDDEN, HEADS, KEY_HEADS, WIDTH, LAYERS, CONTEXT = 29, 8, 4, 2, 4, 2, 12


# --- the functions in ONNX ----------------------------------------------------------------------------------


@onnxscript.script(BUILT_IN, default_opset=op)
def CustomRMSNorm(hidden_states: FLOAT, weight: FLOAT, epsilon: float) -> FLOAT:  # noqa: N802
    """Divide rows by the root of their mean square."""
    mean_square = op.ReduceMean(op.Mul(hidden_states, hidden_states), [-1], keepdims=1)
    smallest = op.Expand(epsilon, op.Shape(mean_square))
    return op.Mul(op.Div(hidden_states, op.Sqrt(op.Add(mean_square, smallest))), op.Cast(weight, to=1))


@onnxscript.script(CARD, default_opset=op)
def CtxScatter(data: FLOAT, position_ids: INT64, updates: FLOAT) -> FLOAT:  # noqa: N802
    """Write rows at their positions."""
    nil = op.Constant(value_ints=[0])
    unit = op.Constant(value_ints=[1])
    sequences = op.Gather(op.Shape(data), nil)
    heads = op.Gather(op.Shape(data), unit)
    target = op.Concat(sequences, heads, op.Gather(op.Shape(position_ids), unit), unit, axis=0)
    of_sequence = op.Expand(op.Unsqueeze(op.Range(nil, sequences, unit), [1, 2, 3]), target)
    of_head = op.Expand(op.Unsqueeze(op.Range(nil, heads, unit), [0, 2, 3]), target)
    of_row = op.Expand(op.Unsqueeze(position_ids, [1, 3]), target)
    return op.ScatterND(data, op.Concat(of_sequence, of_head, of_row, axis=3), updates)


@onnxscript.script(CARD, default_opset=op)
def CtxGather(data: FLOAT, ctx_indices: INT64, comp_ctx_len: INT64) -> FLOAT:  # noqa: N802
    """Read rows of a cache."""
    outer = op.Slice(op.Shape(data), [0], [2])
    target = op.Concat(outer, op.Reshape(comp_ctx_len, [1]), axis=0)
    return op.GatherND(data, op.Unsqueeze(op.Expand(ctx_indices, target), [-1]), batch_dims=2)


@onnxscript.script(CARD, default_opset=op)
def CtxScatterCB(data: FLOAT, batch_index: INT64, position_ids: INT64, updates: FLOAT) -> FLOAT:  # noqa: N802
    """Write rows at their positions, each sequence into its slot of the cache."""
    nil = op.Constant(value_ints=[0])
    unit = op.Constant(value_ints=[1])
    sequences = op.Gather(op.Shape(batch_index), nil)
    heads = op.Gather(op.Shape(data), unit)
    target = op.Concat(sequences, heads, op.Gather(op.Shape(position_ids), unit), unit, axis=0)
    of_slot = op.Expand(op.Unsqueeze(batch_index, [2, 3]), target)
    of_head = op.Expand(op.Unsqueeze(op.Range(nil, heads, unit), [0, 2, 3]), target)
    of_row = op.Expand(op.Unsqueeze(position_ids, [1, 3]), target)
    return op.ScatterND(data, op.Concat(of_slot, of_head, of_row, axis=3), updates)


@onnxscript.script(CARD, default_opset=op)
def CtxGatherCB(  # noqa: N802
    data: FLOAT,
    batch_index: INT64,
    ctx_indices: INT64,
    comp_ctx_len: INT64,  # noqa: ARG001 - the size of `ctx_indices`, which the body reads from that operand
) -> FLOAT:
    """Read rows of the slots that belong to the sequences."""
    nil = op.Constant(value_ints=[0])
    unit = op.Constant(value_ints=[1])
    sequences = op.Gather(op.Shape(batch_index), nil)
    heads = op.Gather(op.Shape(data), unit)
    target = op.Concat(sequences, heads, op.Gather(op.Shape(ctx_indices), [2]), unit, axis=0)
    of_slot = op.Expand(op.Unsqueeze(batch_index, [2, 3]), target)
    of_head = op.Expand(op.Unsqueeze(op.Range(nil, heads, unit), [0, 2, 3]), target)
    of_row = op.Expand(op.Unsqueeze(ctx_indices, [3]), target)
    return op.GatherND(data, op.Concat(of_slot, of_head, of_row, axis=3))


# --- the same functions as operators of torch ---------------------------------------------------------------


@torch.library.custom_op("openqaic_tools::rms_norm", mutates_args=())
def rms_norm(hidden_states: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Divide rows by the root of their mean square."""
    return F.rms_norm(hidden_states, weight.shape, weight, epsilon)


@rms_norm.register_fake
def _(hidden_states: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    del weight, epsilon
    return torch.empty_like(hidden_states)


@torch.library.custom_op("openqaic_tools::scatter", mutates_args=())
def scatter(data: torch.Tensor, position_ids: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """Write rows at their positions; positions below 0 write nothing."""
    return _written(data, torch.arange(data.shape[0]), position_ids, updates)


@scatter.register_fake
def _(data: torch.Tensor, position_ids: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    del position_ids, updates
    return torch.empty_like(data)


@torch.library.custom_op("openqaic_tools::scatter_cb", mutates_args=())
def scatter_cb(
    data: torch.Tensor, batch_index: torch.Tensor, position_ids: torch.Tensor, updates: torch.Tensor
) -> torch.Tensor:
    """Write rows at their positions, each sequence into its slot; positions below 0 write nothing."""
    return _written(data, batch_index[:, 0], position_ids, updates)


@scatter_cb.register_fake
def _(
    data: torch.Tensor, batch_index: torch.Tensor, position_ids: torch.Tensor, updates: torch.Tensor
) -> torch.Tensor:
    del batch_index, position_ids, updates
    return torch.empty_like(data)


def _written(
    data: torch.Tensor, slots: torch.Tensor, position_ids: torch.Tensor, updates: torch.Tensor
) -> torch.Tensor:
    result = data.clone()
    for sequence, slot in enumerate(slots.tolist()):
        for row, place in enumerate(position_ids[sequence].tolist()):
            if place >= 0:
                result[slot, :, place] = updates[sequence, :, row]
    return result


@torch.library.custom_op("openqaic_tools::gather", mutates_args=())
def gather(data: torch.Tensor, ctx_indices: torch.Tensor, comp_ctx_len: int) -> torch.Tensor:
    """Read rows; ``ctx_indices`` is [batch or 1, heads or 1, rows]."""
    places = ctx_indices.long().expand(*data.shape[:2], comp_ctx_len)
    return torch.take_along_dim(data, places[..., None], dim=2)


@gather.register_fake
def _(data: torch.Tensor, ctx_indices: torch.Tensor, comp_ctx_len: int) -> torch.Tensor:
    del comp_ctx_len
    return data.new_empty((*data.shape[:2], ctx_indices.shape[-1], data.shape[3]))


@torch.library.custom_op("openqaic_tools::gather_cb", mutates_args=())
def gather_cb(
    data: torch.Tensor, batch_index: torch.Tensor, ctx_indices: torch.Tensor, comp_ctx_len: int
) -> torch.Tensor:
    """Read rows of the slots that belong to the sequences."""
    return gather(data[batch_index[:, 0]], ctx_indices, comp_ctx_len)


@gather_cb.register_fake
def _(
    data: torch.Tensor, batch_index: torch.Tensor, ctx_indices: torch.Tensor, comp_ctx_len: int
) -> torch.Tensor:
    del comp_ctx_len
    return data.new_empty((batch_index.shape[0], data.shape[1], ctx_indices.shape[-1], data.shape[3]))


_OPERATORS = torch.ops.openqaic_tools
TRANSLATIONS = {
    _OPERATORS.rms_norm.default: CustomRMSNorm,
    _OPERATORS.scatter.default: CtxScatter,
    _OPERATORS.scatter_cb.default: CtxScatterCB,
    _OPERATORS.gather.default: CtxGather,
    _OPERATORS.gather_cb.default: CtxGatherCB,
}


# --- the network --------------------------------------------------------------------------------------------


class Norm(nn.Module):
    """The normalization that is built into a card."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _OPERATORS.rms_norm(x, self.weight, 1e-5)


class DecoderLayer(nn.Module):
    """Grouped attention over caches with rotated positions, and a gated feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = Norm()
        self.query = nn.Linear(HIDDEN, HEADS * WIDTH, bias=False)
        self.key = nn.Linear(HIDDEN, KEY_HEADS * WIDTH, bias=False)
        self.value = nn.Linear(HIDDEN, KEY_HEADS * WIDTH, bias=False)
        self.output = nn.Linear(HEADS * WIDTH, HIDDEN, bias=False)
        self.feed_norm = Norm()
        self.gate = nn.Linear(HIDDEN, 2 * HIDDEN, bias=False)
        self.up = nn.Linear(HIDDEN, 2 * HIDDEN, bias=False)
        self.down = nn.Linear(2 * HIDDEN, HIDDEN, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        position_ids: torch.Tensor,
        past_key: torch.Tensor,
        past_value: torch.Tensor,
        batch_index: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        h = self.attention_norm(x)
        query = rotated(self.query(h).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2), position_ids)
        key = rotated(self.key(h).unflatten(-1, (KEY_HEADS, WIDTH)).transpose(1, 2), position_ids)
        value = self.value(h).unflatten(-1, (KEY_HEADS, WIDTH)).transpose(1, 2)
        context = past_key.shape[2]
        slots = torch.arange(context)[None, None]
        beyond = slots > position_ids.max(1, keepdim=True).values[:, None]
        rows = torch.where(beyond, 0, slots)
        if batch_index is None:
            past_key, past_value = (
                _OPERATORS.scatter(past, position_ids, new)
                for past, new in ((past_key, key), (past_value, value))
            )
            keys, values = (_OPERATORS.gather(past, rows, context) for past in (past_key, past_value))
        else:
            past_key, past_value = (
                _OPERATORS.scatter_cb(past, batch_index, position_ids, new)
                for past, new in ((past_key, key), (past_value, value))
            )
            keys, values = (
                _OPERATORS.gather_cb(past, batch_index, rows, context) for past in (past_key, past_value)
            )
        values = torch.where(beyond[..., None], torch.zeros_like(values), values)
        keys, values = (t.repeat_interleave(HEADS // KEY_HEADS, dim=1) for t in (keys, values))
        scores = query @ keys.transpose(2, 3) * WIDTH**-0.5
        scores = scores.masked_fill(torch.arange(context) > position_ids[:, None, :, None], -10000.0)
        mixed = F.softmax(scores, dim=-1, dtype=torch.float32).to(x.dtype) @ values
        x = x + self.output(mixed.transpose(1, 2).flatten(-2))
        h = self.feed_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h)), past_key, past_value


def rotated(x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of a head by angles that grow with the position."""
    rates = 100.0 ** (-torch.arange(0, WIDTH, 2, dtype=torch.float32) / WIDTH)
    angles = position_ids[:, None, :, None].float() * rates
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


class Decoder(nn.Module):
    """Maps tokens and caches to the scores after the last position, and the caches."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.norm = Norm()
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        past_key_values: list[list[torch.Tensor]],
        batch_index: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        x = self.embedding(input_ids)
        caches = []
        for layer, (key, value) in zip(self.layers, past_key_values, strict=True):
            x, key, value = layer(x, position_ids, key, value, batch_index)  # noqa: PLW2901
            caches += [key, value]
        last = position_ids.argmax(1, keepdim=True)
        x = x[torch.arange(x.shape[0])[:, None], last]
        return self.head(self.norm(x)).float(), caches


CACHES = [f"past_{kind}.{layer}" for layer in range(LAYERS) for kind in ("key", "value")]


def pack(inputs: Inputs) -> dict[str, Any]:
    """Collect the caches in the list of pairs that the network takes."""
    packed: dict[str, Any] = {name: tensor for name, tensor in inputs.items() if not name.startswith("past_")}
    packed["past_key_values"] = [
        [inputs[f"past_{kind}.{layer}"] for kind in ("key", "value")] for layer in range(LAYERS)
    ]
    order = ["input_ids", "position_ids", "past_key_values", "batch_index"]
    return {name: packed[name] for name in order if name in packed}


def recipes() -> list[Recipe]:
    """List the exports of this file."""
    return [
        _recipe("decoder", optimize=False),
        _recipe("decoder-inlined", optimize=False, inlined=True),
        _recipe("decoder-optimized", optimize=True),
        _recipe("decoder-functions", layers=(DecoderLayer,), optimize=False),
        _recipe("decoder-slots", slots=4, optimize=False),
        _recipe("decoder-slots-functions", slots=4, layers=(DecoderLayer,), optimize=False),
        _recipe("decoder-float16", dtype=torch.float16, optimize=False),
    ]


def _recipe(
    name: str,
    *,
    slots: int = 0,
    layers: tuple[type[nn.Module], ...] = (),
    dtype: torch.dtype = torch.float32,
    optimize: bool,
    inlined: bool = False,
) -> Recipe:
    """Export a decoder; with `slots`, its caches have this number of slots, and sequences name theirs."""
    network = seeded(Decoder(), 13).to(dtype)
    batch, rows, context = (
        Dim("batch_size", min=2, max=64),
        Dim("seq_len", min=2, max=64),
        Dim("ctx_len", min=2, max=128),
    )
    tokens = {0: batch, 1: rows}
    cache = {0: Dim("full_batch_size", min=3, max=64) if slots else batch, 2: context}
    shapes: dict[str, Any] = {
        "input_ids": tokens,
        "position_ids": tokens,
        "past_key_values": [[cache, cache] for _ in range(LAYERS)],
    }
    if slots:
        shapes["batch_index"] = {0: batch}
    names = ["input_ids", "position_ids", *CACHES, *(["batch_index"] if slots else [])]
    return Recipe(
        name,
        network,
        _conversation(network, slots, dtype),
        18,
        ["logits", *(f"{cache}_RetainedState" for cache in CACHES)],
        shapes,
        names,
        TRANSLATIONS,
        optimize=optimize,
        pack=pack,
        traced=_call(2, 3, slots, dtype),
        layers=layers,
        inlined=inlined,
        traces=False,
    )


def _call(batch: int, rows: int, slots: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Create the inputs of the first call: empty caches and the first tokens of sequences."""
    inputs = {
        "input_ids": integers(14, VOCABULARY, batch, rows),
        "position_ids": torch.arange(rows).repeat(batch, 1),
    }
    for name in CACHES:
        inputs[name] = torch.zeros((slots or batch, KEY_HEADS, CONTEXT, WIDTH), dtype=dtype)
    if slots:
        inputs["batch_index"] = torch.arange(batch)[:, None] + 1
    return inputs


def _conversation(network: nn.Module, slots: int, dtype: torch.dtype) -> list[Case]:
    """Read a padded prompt, then write tokens; each call receives the caches of the previous call."""
    batch = 2 if slots else 1
    inputs = _call(batch, 5, slots, dtype)
    for sequence in range(batch):
        inputs["position_ids"][sequence, 3 + sequence :] = -1
    cases = []
    for step in range(3):
        rows = inputs["input_ids"].shape[1]
        sizes = {"batch_size": batch, "seq_len": rows, "ctx_len": CONTEXT}
        if slots:
            sizes["full_batch_size"] = slots
        cases.append(Case(f"step{step}", inputs, sizes))
        with torch.no_grad():
            logits, caches = network(**pack({name: tensor.clone() for name, tensor in inputs.items()}))
        inputs = {
            **inputs,
            "input_ids": logits.argmax(-1),
            "position_ids": inputs["position_ids"].max(1, keepdim=True).values + 1,
            **dict(zip(CACHES, caches, strict=True)),
        }
    return cases
