"""Names of tensors in a profile file: the producing node's, made of letters, digits and underscores.

Two nodes may have one name after that; the later ones get ``__1``, ``__2``, ... in
the order of the graph, so that writing and reading give each tensor the same key.

The card's compiler makes several nodes of one of the model, the conversion of an input first and the result
last, and numbers their names in that order: ``Conv_228__2`` is then the result of ``Conv_228``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

import onnx

#: longer names are cut
_MOST_CHARS: Final = 500
_OTHER: Final = re.compile(r"[^A-Za-z0-9_]")
_NUMBERED: Final = re.compile(r"(.+)__([0-9]{1,9})(:[0-9]{1,9})?", re.DOTALL | re.ASCII)


def legalize(name: str) -> str:
    """Make a name of letters, digits and underscores, with a letter in front of a digit, and not too long."""
    legal = _OTHER.sub("_", name)
    if legal[:1].isdigit():
        legal = f"A{legal}"
    if len(legal) > _MOST_CHARS:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        legal = f"{legal[: _MOST_CHARS - 17]}_{digest}"
    return legal


def entry_keys(graph: onnx.GraphProto) -> dict[str, str]:
    """Map every input and every result of a node of the main graph to its key in a profile file."""
    keys: dict[str, str] = {}
    taken: dict[str, int] = {}
    for value in graph.input:
        keys[value.name] = f"{_unique(legalize(value.name), taken)}:0"
    for node in graph.node:
        results = [(position, name) for position, name in enumerate(node.output) if name]
        if not results:
            continue
        legal = _unique(legalize(node.name or results[0][1]), taken)
        for position, name in results:
            keys[name] = f"{legal}:{position}"
    return keys


def _unique(name: str, taken: dict[str, int]) -> str:
    """Return a name that is not taken yet; ``taken`` has the last number that each name was made with."""
    made = name
    while made in taken:
        taken[name] += 1
        made = f"{name}__{taken[name]}"
    taken[made] = 0
    return made


def find_keys(keys: Mapping[str, str], present: Iterable[str], *, written_by_us: bool) -> dict[str, str]:
    """Find the entry of each tensor in a profile file.

    Parameters
    ----------
    keys
        What `entry_keys` returned.
    present
        Keys of the file.
    written_by_us
        True if the keys are certainly those that `entry_keys` makes. Others may be names of tensors, which
        come first; in a file of ours a node could have the name of another node's result.

    Returns
    -------
    dict
        Name of the tensor -> key; tensors without an entry are left out.
    """
    held = set(present)
    if written_by_us:
        return {name: key for name, key in keys.items() if key in held}
    candidates = {name: _candidates(name, key) for name, key in keys.items()}
    # A key that is a tensor's own is no numbered one of another tensor; models may have such names, too.
    last = _last_of_each(held.difference(*candidates.values()))
    found: dict[str, str] = {}
    for name in keys:
        for candidate in candidates[name]:
            if candidate in held or candidate in last:
                found[name] = last.get(candidate, candidate)
                break
    return found


def _candidates(name: str, key: str) -> tuple[str, ...]:
    """Return the keys that a file may have for a tensor, the likeliest first."""
    legal = legalize(name)
    return name, f"{name}:0", key, legal, f"{legal}:0"


def _last_of_each(present: Iterable[str]) -> dict[str, str]:
    """Map each key without its number to the one of these that has the highest."""
    last: dict[str, tuple[int, str]] = {}
    for key in present:
        parts = _NUMBERED.fullmatch(key)
        if parts is not None:
            plain, number = parts[1] + (parts[3] or ""), int(parts[2])
            if number > last.get(plain, (-1, ""))[0]:
                last[plain] = (number, key)
    return {plain: key for plain, (_, key) in last.items()}
