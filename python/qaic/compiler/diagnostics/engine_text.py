"""Reasons of the engine, without the places of its sources."""

from __future__ import annotations

import re
from typing import Final

#: what stands before a reason: kind of the error, place in a source, signature and types of a function
_BEFORE: Final = (
    re.compile(r"^.*(?:Status Message: |InferenceError\] |Exception during initialization: )", re.DOTALL),
    re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : "),
    re.compile(r"^.*\.(?:cc|h|cpp):\d+ ", re.DOTALL),
    re.compile(r"^.*\[with .*?\] (?=\S)", re.DOTALL),
    re.compile(r"^[\w:<>, ]+::\w+\(.*?\) (?:const )?(?=\S)"),
    re.compile(r"^(?:operator\(\)|Compute) (?=\S)"),
    re.compile(r"^.* was false\. (?=\S)", re.DOTALL),
)


def engine_reason(error: Exception) -> str:
    """Return the last part of a message, which shows what the engine expects."""
    text = str(error)
    for pattern in _BEFORE:
        text = pattern.sub("", text)
    lines = text.strip().splitlines()
    return lines[0].strip().rstrip(". ") if lines else "no reason is given"
