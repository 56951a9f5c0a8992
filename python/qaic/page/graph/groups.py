"""Groups of nodes that follow each other: parts of the model, repeated blocks, or neighbors.

A group is an interval in the order of nodes. Arrows between visible boxes therefore point forward, whichever
groups are closed, and a graph without cycles is drawn without cycles.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

#: largest number of boxes in an open group
MOST_CHILDREN: Final = 40
#: largest number of parts of a name that form groups; a hostile name may have a million
_DEEPEST: Final = 12
#: smallest number of nodes of a group
_FEWEST: Final = 2
#: smallest number of occurrences of a sequence of operators that forms a block
_FEWEST_BLOCKS: Final = 3
#: largest number of nodes of a graph that is searched for repeated sequences
_MOST_COMPARED: Final = 20_000


@dataclass(frozen=True)
class Group:
    """The nodes from ``first`` to before ``end``; ``parent`` is the place of the group around it, or -1."""

    first: int
    end: int
    parent: int
    label: str


def grouped(names: Sequence[str], kinds: Sequence[str] = ()) -> list[Group]:
    """Return groups; each follows the group that contains it.

    `names` are the names of the nodes in their order, with parts divided by ``/``; `kinds` are the operators
    of the nodes. If most names have no parts, a repeated sequence of operators is a block.
    """
    paths = [tuple(part for part in name.split("/", _DEEPEST)[:_DEEPEST] if part) for name in names]
    if MOST_CHILDREN < len(kinds) <= _MOST_COMPARED and 2 * sum(len(path) < 2 for path in paths) > len(paths):
        paths = _with_blocks(paths, kinds)
    groups: list[Group] = []
    #: intervals to divide: begin, end, number of used parts of the names, surrounding group
    waiting = [(0, len(names), 0, -1)]
    while waiting:
        first, end, depth, parent = waiting.pop()
        children = _runs(paths, first, end, depth)
        while len(children) == 1 and children[0][2]:
            # All nodes have the same part, so it needs no group.
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


def _with_blocks(paths: list[tuple[str, ...]], kinds: Sequence[str]) -> list[tuple[str, ...]]:
    """Prefix each path with its block: the nodes from one occurrence of a repeated sequence to the next."""
    begins = max((_occurrences(kinds, length) for length in range(2, MOST_CHILDREN)), key=_covered)[1]
    if len(begins) < _FEWEST_BLOCKS:
        return paths
    places = accumulate(place in begins for place in range(len(paths)))
    return [
        (f"block {block}", *(path or ("",))) if block else path
        for block, path in zip(places, paths, strict=True)
    ]


def _covered(found: tuple[int, set[int]]) -> tuple[int, bool]:
    length, count = found[0], len(found[1])
    # A sequence with few blocks fits into a group; it wins among those that cover equally many nodes.
    return (length * count if count >= _FEWEST_BLOCKS else 0, count < MOST_CHILDREN)


def _occurrences(kinds: Sequence[str], length: int) -> tuple[int, set[int]]:
    """Return the starts of the most frequent sequence of a length, without overlaps."""
    begins: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for place in range(len(kinds) - length + 1):
        found = begins[tuple(kinds[place : place + length])]
        if not found or place - found[-1] >= length:
            found.append(place)
    most: list[int] = max(begins.values(), key=len)
    return length, set(most)


def _span(children: Sequence[tuple[int, int, str]]) -> str:
    """Return the range of a group: by labels, or by the places of its nodes."""
    first, last = children[0], children[-1]
    return f"{first[2]} to {last[2]}" if first[2] and last[2] else f"nodes {first[0] + 1} to {last[1]}"


def _runs(paths: Sequence[tuple[str, ...]], first: int, end: int, depth: int) -> list[tuple[int, int, str]]:
    """Divide an interval into runs of nodes of one part, with its label, and single nodes without a label."""
    runs: list[tuple[int, int, str]] = []
    begin = first
    while begin < end:
        path = paths[begin]
        stop = begin + 1
        # The last part is the name of the node itself.
        if depth < len(path) - 1:
            while stop < end and depth < len(paths[stop]) - 1 and paths[stop][depth] == path[depth]:
                stop += 1
        runs.append((begin, stop, path[depth] if stop - begin >= _FEWEST else ""))
        begin = stop
    return runs


def _neighbors(
    groups: list[Group], children: Sequence[tuple[int, int, str]], depth: int, parent: int
) -> list[tuple[int, int, int, int]]:
    """Group neighbors if there are too many; returns the intervals to divide next."""
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
