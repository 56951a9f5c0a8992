"""The differences between two containers as text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from qaic.cli.qpc.info_text import value_text
from qaic.support.text import escape_unprintable

if TYPE_CHECKING:
    from collections.abc import Iterator

_Json = dict[str, Any]

#: entries of a list that are shown; --json has them all
_MOST: Final = 20
_LONGEST: Final = 200

#: of a constant: what is no pair of values
_COUNTS: Final = frozenset({"different", "of", "max_abs_difference"})

_TITLES: Final = {
    "program": "program",
    "options": "options",
    "bindings": "inputs and outputs",
    "shapes": "allowed shapes",
    "constants": "constants",
    "graph": "graph",
    "metadata": "metadata",
    "segments": "segments",
}


def diff_text(found: _Json) -> str:
    """Everything ``qaic-qpc diff`` shows."""
    return "\n".join(_lines(found))


def _lines(found: _Json) -> Iterator[str]:
    for text in found["problems"]:
        yield f"problem: {escape_unprintable(text)}"
    if found["same"]:
        yield "no difference"
        return
    for key, title in _TITLES.items():
        lines = list(_section(key, found.get(key)))
        if lines:
            yield title
            yield from (f"  {line}" for line in lines)
    for name, inner in found.get("slices", {}).items():
        yield f"--- {escape_unprintable(name)}"
        yield from (f"  {line}" for line in _lines(inner))


def _section(key: str, section: Any) -> Iterator[str]:
    if not section:
        return
    if key == "shapes":
        yield f"{len(section[0])} -> {len(section[1])} sets, or others"
    elif key in {"program", "metadata"}:
        yield from _changes(section)
    elif key == "options":
        for kind in ("set", "effective"):
            yield from (f"{kind}: {line}" for line in _changes(section[kind]))
    elif key == "bindings":
        for side in ("inputs", "outputs"):
            yield from (f"{side}: {line}" for line in _named(section[side]))
    else:
        for part in ("operator_sets", "operators"):
            yield from (f"{part.replace('_', ' ')}: {line}" for line in _changes(section.get(part, {})))
        yield from _named(section)


def _named(section: _Json) -> Iterator[str]:
    """Names of one side, with signs as those of `diff`, and what changed at others."""
    for sign, part in (("-", "removed"), ("+", "added")):
        yield from _limited([f"{sign} {escape_unprintable(name)}" for name in section.get(part, ())])
    yield from _limited(
        [
            f"{escape_unprintable(name)}: {'; '.join(_changes(changes))}"
            for name, changes in section.get("changed", {}).items()
        ]
    )
    if "order" in section:
        yield "the same in another order"


def _changes(changes: _Json) -> Iterator[str]:
    if "different" in changes:
        # Of a constant: counts of elements rather than two values.
        text = f"{changes['different']} of {changes['of']} elements differ"
        if "max_abs_difference" in changes:
            text += f", by at most {changes['max_abs_difference']:g}"
        yield text
    for key, values in changes.items():
        if key in _COUNTS:
            continue
        before, after = values
        yield f"{escape_unprintable(key)}  {_shown(before)} -> {_shown(after)}"


def _shown(value: Any) -> str:
    if value is None:
        return "(none)"
    text = escape_unprintable(value_text(value)) or "(empty)"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _limited(lines: list[str]) -> Iterator[str]:
    yield from lines[:_MOST]
    if len(lines) > _MOST:
        yield f"... and {len(lines) - _MOST} more"
