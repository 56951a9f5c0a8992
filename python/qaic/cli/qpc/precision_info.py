"""What the recorded options of a container say about its numbers, and which mean nothing on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_QUANTIZING: Final = ("convert_to_quantize", "load_profile", "external_quantization_file")
_DEFAULT_SCHEMA: Final = "symmetric_with_uint8"


def without_effect(options: Mapping[str, Any]) -> list[str]:
    """List the options that only mean something to hardware, as far as this version knows them."""
    from qaic.options.spec import Effect
    from qaic.options.table import find

    found = ((name, find(name)) for name in options)
    return [name for name, spec in found if spec is not None and spec.effect is Effect.RECORDED]


def precision(options: Mapping[str, Any]) -> str:
    """Sum up what a program computes in. The options come from a file and may hold anything."""
    parts = ["fp16" if options.get("convert_to_fp16") is True else "as in the model"]
    if any(options.get(name) for name in _QUANTIZING):
        both = options.get("quantization_schema", _DEFAULT_SCHEMA)
        activations = options.get("quantization_schema_activations", both)
        constants = options.get("quantization_schema_constants", both)
        method = options.get("quantization_calibration", "None")
        ranges = "whole ranges" if method == "None" else f"calibrated by {method}"
        schemas = f"{activations}" if activations == constants else f"{activations}, constants {constants}"
        parts.append(
            f"{options.get('quantization_precision', 'Int8')} ({schemas}, {ranges}{_granularity(options)})"
        )
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
