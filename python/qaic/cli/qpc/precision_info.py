"""Precision facts in the recorded options of a container, and which have no meaning on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from qaic.support.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

_QUANTIZING: Final = ("convert_to_quantize", "load_profile", "external_quantization_file")
_DEFAULT_SCHEMA: Final = "symmetric_with_uint8"

#: operators whose results are integers that stand for floats, and those that only convert between the two
_STORING: Final = frozenset({"DynamicQuantizeLinear", "QuantizeLinear"})
_CONVERTING: Final = _STORING | {"Cast", "Constant", "DequantizeLinear"}

#: operators that multiply stored integers
_INTEGER: Final = frozenset({"ConvInteger", "MatMulInteger"})

#: what the compiler adds to the name of a result before it is quantized
_UNQUANTIZED: Final = "/float"


def without_effect(options: Mapping[str, Any]) -> list[str]:
    """List the options that only mean something to hardware, as far as this version knows them."""
    from qaic.options.spec import Effect
    from qaic.options.table import find

    found = ((name, find(name)) for name in options)
    return [name for name, spec in found if spec is not None and spec.effect is Effect.RECORDED]


def asks_for_integers(options: Mapping[str, Any]) -> bool:
    """Return whether the options ask for a quantized program."""
    return any(options.get(name) for name in _QUANTIZING)


def integer_coverage(graph: bytes) -> tuple[int, int] | None:
    """Count the nodes of a program's graph that compute on integers between scales, and all that compute.

    Parameters
    ----------
    graph : bytes
        Serialized ONNX model. It comes from a file and may hold anything.

    Returns
    -------
    tuple of int or None
        None where the graph cannot be read or has no nodes.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        nodes = onnx.load_from_string(graph).graph.node
    except DecodeError:
        return None
    makers = {name: node.op_type for node in nodes for name in node.output if name}
    readers: dict[str, set[str]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, set()).add(node.op_type)
    stored = {name for name, maker in makers.items() if maker in _STORING}
    integer = computing = 0
    for node in nodes:
        if node.op_type in _CONVERTING:
            continue
        computing += 1
        on_integers = bool(stored.intersection(node.input))
        if on_integers:
            stored.update(node.output)
        # A node that stays in float keeps the name of its result.
        between = any(makers.get(name) == "DequantizeLinear" for name in node.input) and any(
            _UNQUANTIZED in name and "QuantizeLinear" in readers.get(name, ()) for name in node.output
        )
        integer += on_integers or between or node.op_type.startswith("QLinear") or node.op_type in _INTEGER
    return (integer, computing) if computing else None


def precision(options: Mapping[str, Any], coverage: tuple[int, int] | None = None) -> str:
    """Sum up what a program computes in.

    Parameters
    ----------
    options : Mapping[str, Any]
        Options that the program was compiled with. They come from a file and may hold anything.
    coverage : tuple of int or None
        Number of its nodes that compute on integers, and of all; None where it is not known.
    """
    parts = ["fp16" if options.get("convert_to_fp16") is True else "as in the model"]
    if asks_for_integers(options):
        both = options.get("quantization_schema", _DEFAULT_SCHEMA)
        activations = options.get("quantization_schema_activations", both)
        constants = options.get("quantization_schema_constants", both)
        method = options.get("quantization_calibration", "None")
        ranges = "whole ranges" if method == "None" else f"calibrated by {method}"
        schemas = f"{activations}" if activations == constants else f"{activations}, constants {constants}"
        wanted = options.get("quantization_precision", "Int8")
        if coverage is not None and not coverage[0]:
            parts.append(f"{wanted} for none of {counted(coverage[1], 'node')}")
        else:
            share = "" if coverage is None else f" for {coverage[0]} of {counted(coverage[1], 'node')}"
            parts.append(f"{wanted}{share} ({schemas}, {ranges}{_granularity(options)})")
    for name, text in (
        ("execute_nodes_in_fp16", "fp16 for {}"),
        ("keep_original_precision_for_nodes", "unchanged for {}"),
    ):
        kinds = options.get(name)
        if isinstance(kinds, list) and kinds:
            parts.append(text.format(", ".join(map(str, kinds))))
    for name, text in (
        ("node_precision_info_file", "single nodes by a file"),
        ("mxfp6_matmul", "weights of matrix products in MXFP6"),
        ("mxint8_kv_cache", "retained state in MXINT8"),
        ("allow_mxint8_mdp_io", "traffic between partitions in MXINT8"),
    ):
        if options.get(name):
            parts.append(text)
    return "; ".join(parts)


def _granularity(options: Mapping[str, Any]) -> str:
    names = {"enable_channelwise": "by channel", "enable_rowwise": "by row"}
    return "".join(f", {text}" for name, text in names.items() if options.get(name) is True)
