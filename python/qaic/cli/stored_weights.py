"""Weights that products read in the mapped container, and the time that memory needs to read them.

A token of a language model reads each of these bytes once, so no inference takes less time than reading them.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np

from qaic.cli.graph_model import read_graph
from qaic.qpc import Qpc
from qaic.qpc.initializers import check_records, mapped_sizes

#: the operator that multiplies with a weight of the plan
_DOMAIN: Final = "com.openqaic"
_PRODUCT: Final = "StoredMatMul"

_MOST_READ: Final = 1 << 30
_REPEATS: Final = 3


def stored_weights(qpc: Qpc) -> dict[str, Any] | None:
    """Sum the weights that kernels of the device read in the container. Blocking.

    Returns ``count``, ``bytes``, ``bytes_per_weight``, and ``read_bytes``: the bytes that products of one
    inference read, each matrix once. Returns None if the program has no such weights. Raises QpcError if the
    plan or the graph is damaged.
    """
    records = check_records((qpc.plan or {}).get("initializers", []))
    sizes = mapped_sizes(records)
    if not sizes:
        return None
    read = {
        attribute.s.decode(errors="replace")
        for node in read_graph(qpc).graph.node
        if node.op_type == _PRODUCT and node.domain == _DOMAIN
        for attribute in node.attribute
        if attribute.name == "weight"
    }
    count = sum(elements for elements, _ in sizes.values())
    total = sum(size for _, size in sizes.values())
    return {
        "count": count,
        "bytes": total,
        "bytes_per_weight": total / count if count else None,
        "read_bytes": sum(size for name, (_, size) in sizes.items() if name in read),
    }


def bandwidth_limit(qpc: Qpc, read_bytes: int) -> dict[str, Any]:
    """Measure how fast the processors that run a program read its container, and so its shortest inference.

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
