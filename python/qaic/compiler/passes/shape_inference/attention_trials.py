"""Sizes of heads in attention nodes, and operands for a trial run of such a node.

The engine compares heads only in a run, and a run needs lengths and positions that fit the sizes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import onnx

from qaic.compiler.ir.graph_walk import attribute_of, standard

Shapes = Mapping[str, tuple[int, ...]]

_ENGINE_DOMAIN: Final = "com.microsoft"
#: positions of the caches, the two lengths, the angles and the mask of scores among the operands of
#: GroupQueryAttention
_CACHES, _LENGTHS, _TOTAL, _TABLES, _SCORES = (3, 4), 5, 6, (7, 8), 10
#: positions of both masks and of the cache length among the operands of DecoderMaskedMultiHeadAttention
_MASKS, _PAST_LENGTH = (3, 4), 7


@dataclass(frozen=True, slots=True)
class Trial:
    """Values of integer operands of a node, and smaller sizes of other operands, which reduce the cost."""

    integers: Mapping[str, int] = field(default_factory=dict)
    shapes: Shapes = field(default_factory=dict)


def _operands(node: onnx.NodeProto, *places: int) -> list[str]:
    """List the operands at some positions, "" for an omitted operand."""
    return [node.input[at] if at < len(node.input) else "" for at in places]


def _is_engine_node(node: onnx.NodeProto, op_type: str) -> bool:
    return node.domain == _ENGINE_DOMAIN and node.op_type == op_type


def _first_rows(tables: list[str], shapes: Shapes, count: int) -> dict[str, tuple[int, ...]]:
    """Return the sizes of tables with only the rows that a run reads; different sizes stay different."""
    held = {name: shapes[name] for name in tables if len(shapes.get(name, ())) == 2}
    rows = sorted({sizes[0] for sizes in held.values()})
    smaller = {
        name: (min(sizes[0], count + rows.index(sizes[0])), *sizes[1:]) for name, sizes in held.items()
    }
    return smaller if smaller != held else {}


def trial_of(node: onnx.NodeProto, shapes: Shapes) -> Trial:
    """Return operands with which an attention node runs if its sizes fit."""
    if node.op_type == "RotaryEmbedding" and (node.domain == _ENGINE_DOMAIN or standard(node, node.op_type)):
        *tables, positions = _operands(node, *((2, 3, 1) if node.domain == _ENGINE_DOMAIN else (1, 2, 3)))
        tokens = max(shapes[node.input[0]][-2:-1], default=1)
        return Trial({positions: 0} if positions else {}, _first_rows(tables, shapes, tokens))
    if _is_engine_node(node, "GroupQueryAttention"):
        lengths, total, scores, *caches = _operands(node, _LENGTHS, _TOTAL, _SCORES, *_CACHES)
        tables = _operands(node, *_TABLES)
        tokens = max(shapes[node.input[0]][1:2], default=1)
        rows = max(tokens, *shapes[scores][-1:]) if scores else tokens
        held = {name: shapes[name] for name in caches if name and len(shapes[name]) == 4}
        counts = {sizes[2] for sizes in held.values()}
        if any(0 < count < tokens for count in counts):
            # The cache has no room for a first step.
            rows, held = max(counts) + tokens, {}
        # A first step fills a cache with this number of rows.
        smaller = {name: (*sizes[:2], rows, sizes[3]) for name, sizes in held.items()}
        return Trial({lengths: rows - 1, total: rows}, smaller | _first_rows(tables, shapes, rows))
    if _is_engine_node(node, "DecoderMaskedMultiHeadAttention"):
        *masks, past = _operands(node, *_MASKS, _PAST_LENGTH)
        rows = next((shapes[name][-1] for name in masks if name and shapes[name]), 1)
        return Trial({name: number for name, number in ((masks[0], 1), (past, rows - 1)) if name})
    return Trial()


def heads_fault(node: onnx.NodeProto, shapes: Shapes) -> str:
    """Return the reason why operands of a GroupQueryAttention do not fit its numbers of heads, or ""."""
    query, key, value, *caches = _operands(node, 0, 1, 2, *_CACHES)
    if not _is_engine_node(node, "GroupQueryAttention") or len(shapes.get(query, ())) != 3:
        return ""
    heads, groups = (attribute_of(node, name, 0) for name in ("num_heads", "kv_num_heads"))
    if groups < 1 or heads < 1 or heads % groups:
        return (
            f"{heads} heads of 'num_heads', which {groups} of 'kv_num_heads' do not divide into equal sizes"
        )
    samples, tokens, width = shapes[query]
    parts = heads if key else heads + 2 * groups
    if width % parts:
        return f"a last dim of {width} in {query!r}, expected a multiple of {parts} heads"
    head = width // parts
    needed: dict[str, tuple[int, ...]] = {
        name: (samples, tokens, groups * head) for name in (key, value) if name
    }
    # One integer of a cache may contain two values.
    is_packed = attribute_of(node, "kv_cache_bit_width", 0) not in {0, 8}
    held = {name: shapes[name] for name in caches if name in shapes}
    rows = next(iter(held.values()), ())[2:3]
    needed |= {
        name: (samples, groups, *rows, *(sizes[3:4] if is_packed else (head,)))
        for name, sizes in held.items()
    }
    (lengths,) = _operands(node, _LENGTHS)
    if math.prod(shapes.get(lengths, (samples,))) != samples:
        # Older engines always read one length for each sample.
        return f"{lengths!r} is {list(shapes[lengths])}, expected {[samples]}"
    for name, expected in needed.items():
        if name in shapes and shapes[name] != expected:
            return f"{name!r} is {list(shapes[name])}, expected {list(expected)} for heads of {head} elements"
    return ""
