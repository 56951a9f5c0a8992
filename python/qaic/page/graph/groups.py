"""Groups of nodes that follow each other: those of a part of the model, or just neighbors.

A group is a stretch of the order of nodes. So whatever groups are closed, arrows between what is shown point
forward, and the picture of a graph without circles has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

#: boxes that one open group shows at most
MOST_CHILDREN: Final = 40
#: parts of a name that make groups; a hostile name may have a million
_DEEPEST: Final = 12
#: nodes of a group at least
_FEWEST: Final = 2


@dataclass(frozen=True)
class Group:
    """The nodes from ``first`` to before ``end``; ``parent`` is the place of the group around it, or -1."""

    first: int
    end: int
    parent: int
    label: str


def grouped(names: Sequence[str]) -> list[Group]:
    """Return groups, each after the one around it.

    Parameters
    ----------
    names
        Names of the nodes in their order, with parts divided by ``/``.
    """
    paths = [_scopes(name) for name in names]
    groups: list[Group] = []
    #: stretches that are to be divided: begin, end, parts of the names that are spent, group around
    waiting = [(0, len(names), 0, -1)]
    while waiting:
        first, end, depth, parent = waiting.pop()
        children = _runs(paths, first, end, depth)
        while len(children) == 1 and children[0][2]:
            # Everything lies in the same part: it needs no group of its own.
            depth += 1
            children = _runs(paths, first, end, depth)
        if len(children) > MOST_CHILDREN:
            waiting += _neighbors(groups, children, depth, parent)
            continue
        for begin, stop, label in children:
            if label:
                groups.append(Group(begin, stop, parent, label))
                waiting.append((begin, stop, depth + 1, len(groups) - 1))
    return groups


def _span(children: Sequence[tuple[int, int, str]]) -> str:
    """Return the range of a group: by labels, or by the places of its nodes."""
    first, last = children[0], children[-1]
    return f"{first[2]} to {last[2]}" if first[2] and last[2] else f"nodes {first[0] + 1} to {last[1]}"


def _scopes(name: str) -> tuple[str, ...]:
    return tuple(part for part in name.split("/", _DEEPEST)[:_DEEPEST] if part)


def _runs(paths: Sequence[tuple[str, ...]], first: int, end: int, depth: int) -> list[tuple[int, int, str]]:
    """Divide a stretch into runs of nodes of one part, with its label, and single nodes, with none."""
    runs: list[tuple[int, int, str]] = []
    begin = first
    while begin < end:
        path = paths[begin]
        stop = begin + 1
        # The last part is the node's own name.
        if depth < len(path) - 1:
            while stop < end and depth < len(paths[stop]) - 1 and paths[stop][depth] == path[depth]:
                stop += 1
        runs.append((begin, stop, path[depth] if stop - begin >= _FEWEST else ""))
        begin = stop
    return runs


def _neighbors(
    groups: list[Group],
    children: Sequence[tuple[int, int, str]],
    depth: int,
    parent: int,
) -> list[tuple[int, int, int, int]]:
    """Put neighbors into groups where they are too many; returns the stretches to divide next."""
    size = MOST_CHILDREN
    while -(-len(children) // size) > MOST_CHILDREN:
        size *= MOST_CHILDREN
    stretches = []
    for place in range(0, len(children), size):
        part = children[place : place + size]
        first, end = part[0][0], part[-1][1]
        if end - first < _FEWEST:
            continue
        # One child is a group already, or a single node.
        spent, label = (depth, _span(part)) if len(part) > 1 else (depth + 1, part[0][2])
        groups.append(Group(first, end, parent, label))
        stretches.append((first, end, spent, len(groups) - 1))
    return stretches
