"""Writes the list of operators that the wheel contains: an estimate, because the vendor publishes no list.

``PYTHONPATH=tools python -m generators.operator_estimate > python/qaic/compiler/reports/aic_operators.json``

The list contains an operator if the engine has a kernel for it in a type of the card, or if ONNX defines the
operator by others. It excludes kinds that compilers for the card do not support: control flow, results whose
size depends on data, random numbers, text, classical machine learning, and training.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_ENGINE: Final = "CPUExecutionProvider"
_DOMAINS: Final = ("",)
#: The engine's name for "no later version is known".
_OPEN: Final = 2**31 - 1

#: Element types in which the card computes or which it moves, by the engine's names.
_CARD_TYPES: Final = {
    "float": "float32",
    "float16": "float16",
    "int8": "int8",
    "uint8": "uint8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "bool": "bool",
}

#: Kinds that are excluded, and the reason.
_LEFT_OUT: Final = {
    "control flow": ("Loop", "Scan"),
    "the size of a result depends on data": ("Compress", "NonZero", "Unique"),
    "random numbers": (
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"),
        *("RandomUniform", "RandomUniformLike"),
    ),
    "text and files": (
        *("ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit"),
        "TfIdfVectorizer",
    ),
    "values that are no tensors": (
        *("ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt"),
        *("SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength"),
        *("SequenceMap", "SplitToSequence"),
    ),
    "training": ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"),
}

#: Operators that no kernel or definition covers, because they compute nothing.
_ALWAYS: Final = {"Constant": 1, "If": 1}

#: Operators of other domains that exporters for the card write.
_OF_EXPORTERS: Final = {("com.microsoft", "MatMulNBits"): 1}

#: Notes about operators in the list.
_NOTES: Final = {
    "Einsum": "older compilers for the card refuse it; newer models use it",
    "If": "the condition must be a constant",
    "NonMaxSuppression": "only at the end of a detector",
    "Expand": "the shape must be a constant",
    "OneHot": "the depth must be a constant",
    "Pad": "the pads must be constants",
    "Range": "start, limit and delta must be constants",
    "Reshape": "the shape must be a constant",
    "Resize": "scales and sizes must be constants",
    "Slice": "starts, ends, axes and steps must be constants",
    "Tile": "the repeats must be constants",
    "TopK": "k must be a constant",
}


def operators() -> list[dict[str, Any]]:
    """Create the list from the installed engine and the installed ONNX definitions."""
    import onnxruntime
    from onnx import defs
    from onnxruntime.capi import onnxruntime_pybind11_state as engine

    excluded = {name for names in _LEFT_OUT.values() for name in names}
    known = {(schema.domain, schema.name): schema for schema in defs.get_all_schemas_with_history()}
    found: dict[tuple[str, str], dict[str, Any]] = {
        ("", name): {
            "first": first,
            "last": _OPEN,
            "types": set(_CARD_TYPES.values()),
            "source": "resolved when compiled",
        }
        for name, first in _ALWAYS.items()
    }
    found |= {
        key: {
            "first": first,
            "last": _OPEN,
            "types": {"float32", "float16"},
            "source": "exporters for the card write it",
        }
        for key, first in _OF_EXPORTERS.items()
    }
    source = f"kernels of onnxruntime {'.'.join(onnxruntime.__version__.split('.')[:2])}"
    for kernel in engine.get_all_opkernel_def():
        key = (kernel.domain, kernel.op_name)
        # The engine has internal operators that no model can contain.
        is_standard = kernel.domain in _DOMAINS and key in known and kernel.op_name not in excluded
        if kernel.provider != _ENGINE or not is_standard or kernel.op_name in _ALWAYS:
            continue
        first, last = kernel.version_range
        entry = found.setdefault(key, {"first": first, "last": last, "types": set(), "source": source})
        entry["first"] = min(entry["first"], first)
        entry["last"] = max(entry["last"], last)
        entry["types"] |= _card_types(text for kinds in kernel.type_constraints.values() for text in kinds)
        # If each operand of an operator has one type, the operator has no constraints.
        entry["types"] |= _card_types(operand.type_str for operand in known[key].inputs)
    for schema in defs.get_all_schemas_with_history():
        key = (schema.domain, schema.name)
        # The stubs of onnx have neither of them.
        is_composed = any(
            getattr(schema, name) for name in ("has_function", "has_context_dependent_function")
        )
        if schema.domain in _DOMAINS and is_composed and schema.name not in excluded and key not in found:
            found[key] = {
                "first": schema.since_version,
                "last": _OPEN,
                "types": _card_types(
                    text for kind in schema.type_constraints for text in kind.allowed_type_strs
                ),
                "source": "composed of other operators by its ONNX definition",
            }
    return [_row(key, found[key]) for key in sorted(found) if found[key]["types"]]


def _card_types(texts: Iterable[str]) -> set[str]:
    names = {text.removeprefix("tensor(").removesuffix(")") for text in texts}
    return {_CARD_TYPES[name] for name in names & _CARD_TYPES.keys()}


def _row(key: tuple[str, str], entry: dict[str, Any]) -> dict[str, Any]:
    types = entry["types"] | ({"float16"} if "float32" in entry["types"] else set())
    order = list(_CARD_TYPES.values())
    return {
        "operator": key[1],
        "domain": key[0],
        "first_opset": entry["first"],
        "last_opset": None if entry["last"] >= _OPEN else entry["last"],
        "dtypes": sorted(types, key=order.index),
        "note": _NOTES.get(key[1], ""),
        "source": entry["source"],
    }


def _main() -> None:
    rows = operators()
    head = '{\n"format": 1,\n"origin": "estimate",\n"operators": [\n'
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    sys.stdout.write(f"{head}{lines}\n]\n}}\n")


if __name__ == "__main__":
    _main()
