"""Traffic between the devices of a program."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from qaic.report import Cell, Report, Table, columns_of
from qaic.stats.reports.capture import Capture
from qaic.stats.reports.capture.groups import output_bytes
from qaic.support.text import counted

_SEND: Final = re.compile(r"\s*(\d+)\s*->\s*(\d+(?:\s*,\s*\d+)*)\s*")
_RECEIVE: Final = re.compile(r"\s*(\d+)\s*<-\s*(\d+)\s*")

_MATRIX = columns_of("from device:int | to device:int | transfers:int | sent:bytes | received:bytes")
_NODES = columns_of("node | from device:int | to device:int | transfers:int | sent:bytes")
_PAIRS = columns_of("transaction | from device:int | to device:int | finding")


@dataclass(frozen=True)
class Side:
    """One executed side of a transfer."""

    source: int
    target: int
    transaction: str
    node: str
    size: float
    executed: float
    sends: bool


def sides(capture: Capture) -> Iterator[Side]:
    """Yield sends, one per target, and receives of all devices."""
    for reader in capture.each():
        facts = reader.facts
        if not facts.transfers:
            continue
        sizes, counts = output_bytes(reader), reader.ops.count + reader.ops.transfer_count
        for side in facts.transfers:
            node, size, count = facts.nodes[side.op], float(sizes[side.op]), float(counts[side.op])
            if match := _SEND.fullmatch(side.description):
                for target in match[2].split(","):
                    ends = int(match[1]), int(target)
                    yield Side(*ends, side.transaction, node, size, count, sends=True)
            elif match := _RECEIVE.fullmatch(side.description):
                ends = int(match[2]), int(match[1])
                yield Side(*ends, side.transaction, node, size, count, sends=False)


def p2p(capture: Capture) -> Report:
    """Report bytes from device to device, nodes that send, and sends and receives without a counterpart."""
    found = list(sides(capture.typical))
    matrix: dict[tuple[int, int], list[float]] = {}
    by_node: dict[tuple[str, int, int], list[float]] = {}
    pairs: dict[tuple[str, int, int], tuple[list[Side], list[Side]]] = {}
    for side in found:
        key = (side.source, side.target)
        row = matrix.setdefault(key, [0.0, 0.0, 0.0])
        if side.sends:
            row[0] += side.executed
            row[1] += side.size
            node_row = by_node.setdefault((side.node, *key), [0.0, 0.0])
            node_row[0] += side.executed
            node_row[1] += side.size
        else:
            row[2] += side.size
        pairs.setdefault((side.transaction, *key), ([], []))[0 if side.sends else 1].append(side)
    odd = [
        (*key, finding)
        for key, (sent, received) in sorted(pairs.items())
        if (finding := _unpaired(sent, received))
    ]
    matrix_rows: list[tuple[Cell, ...]] = [
        (*key, round(count), round(sent), round(received))
        for key, (count, sent, received) in sorted(matrix.items())
    ]
    node_rows: list[tuple[Cell, ...]] = [
        (*key, round(count), round(sent))
        for key, (count, sent) in sorted(by_node.items(), key=lambda item: (-item[1][1], item[0]))
    ]
    verdict = []
    if found:
        verdict.append(
            f"{counted(len(pairs), 'transfer')} between devices; without one send and one equal receive: "
            f"{len(odd)}"
        )
    none = None if found else "the program transfers nothing between devices"
    return Report(
        "p2p",
        "Traffic between devices",
        verdict,
        [
            Table("matrix", "From device to device", _MATRIX, matrix_rows, none),
            Table("nodes", "Sending nodes", _NODES, node_rows),
            Table("unpaired", "Unmatched transfers", _PAIRS, [tuple(row) for row in odd]),
        ],
    )


def _unpaired(sent: list[Side], received: list[Side]) -> str:
    """Return the defect of a transaction: one send must meet one receive of the same size."""
    if len(sent) != 1 or len(received) != 1:
        return f"{len(sent)} sends, {len(received)} receives"
    if sent[0].size != received[0].size:
        return f"sends {sent[0].size:.0f} bytes, receives {received[0].size:.0f}"
    return ""
