"""Weights that products read in the mapped container, and the time that memory needs to read them.

A token of a language model reads each of these bytes once, so no inference takes less time than reading them.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from qaic.cli.graph_model import read_graph
from qaic.qpc import Qpc
from qaic.qpc.initializers import check_records, mapped_sizes

if TYPE_CHECKING:
    import onnx

_DOMAIN: Final = "com.openqaic"
#: the operators that multiply with a weight of the plan, and with some of its matrices
_PRODUCT: Final = "StoredMatMul"
_EXPERTS: Final = "StoredExperts"

_MOST_READ: Final = 1 << 30
_REPEATS: Final = 3


def stored_weights(qpc: Qpc) -> dict[str, Any] | None:
    """Sum the weights that kernels of the device read in the container. Blocking.

    Returns ``count``, ``bytes``, ``bytes_per_weight``, and ``read_bytes``: the bytes that products of one
    inference read, each matrix once. A mixture of experts reads as many matrices as it has indices in the set
    of shapes with the fewest; repeated indices count. Returns None if the program has no such weights. Raises
    QpcError if the plan or the graph is damaged.
    """
    records = check_records((qpc.plan or {}).get("initializers", []))
    sizes = mapped_sizes(records)
    if not sizes:
        return None
    # The last reader of a weight is the one with the largest share.
    read = dict(sorted(map(_share, filter(_multiplies, read_graph(qpc).graph.node))))
    count = sum(elements for elements, _ in sizes.values())
    total = sum(size for _, size in sizes.values())
    return {
        "count": count,
        "bytes": total,
        "bytes_per_weight": total / count if count else None,
        "read_bytes": sum(int(size * read[name]) for name, (_, size) in sizes.items() if name in read),
    }


def _multiplies(node: "onnx.NodeProto") -> bool:
    return node.op_type in {_PRODUCT, _EXPERTS} and node.domain == _DOMAIN


def _share(node: "onnx.NodeProto") -> tuple[str, float]:
    """Return the weight of a product, and the share of it that an inference reads."""
    values = {attribute.name: attribute for attribute in node.attribute}
    share = 1.0
    if node.op_type == _EXPERTS and "experts" in values and "chosen" in values:
        experts, chosen = values["experts"].i, values["chosen"].i
        share = chosen / experts if 0 < chosen < experts else 1.0
    return values["weight"].s.decode(errors="replace") if "weight" in values else "", share


def bandwidth_limit(qpc: Qpc, read_bytes: int) -> dict[str, Any]:
    """Measure the bandwidth at which processors read a container, which limits the time of an inference.

    Blocking: reads up to 1 GiB of the file a few times, so that its pages are in memory.

    `qpc` is a container in a file; `read_bytes` are the bytes that an inference reads. Returns ``threads``;
    the measured ``bytes_per_second``; and ``seconds``, the computed shortest time of an inference.
    """
    threads = min(max(1, qpc.program_info.num_cores), len(os.sched_getaffinity(0)))
    size = min(max(read_bytes, 1), qpc.header["size"], _MOST_READ)
    parts = np.array_split(np.memmap(str(qpc.path), np.uint8, "r", shape=(size,)), threads)
    with ThreadPoolExecutor(threads) as pool:

        def seconds() -> float:
            started = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))
            return time.perf_counter() - started

        seconds()
        speed = size / min(seconds() for _ in range(_REPEATS))
    return {"threads": threads, "bytes_per_second": speed, "seconds": read_bytes / speed}
