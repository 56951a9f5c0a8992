"""A slow job and the processes of a cluster, for tests that kill some of the processes."""

import contextlib
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

import qaic.ray
import session_models

BATCH, WIDTH, LAYERS = 8, 512, 12
ROWS, ROWS_AT_A_TIME = 1200, 16


def slow_model():
    """A network that takes some milliseconds for each batch."""
    rng = np.random.default_rng(0)
    weights = {
        f"w{layer}": (rng.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
        for layer in range(LAYERS)
    }
    nodes, last = [], "x"
    for layer in range(LAYERS):
        output = "y" if layer == LAYERS - 1 else f"m{layer}"
        nodes.append(session_models.helper.make_node("MatMul", [last, f"w{layer}"], [output]))
        last = output
    shape = [BATCH, WIDTH]
    return session_models.model(nodes, [("x", "float32", shape)], [("y", "float32", shape)], weights)


def dataset(ray, count=ROWS, size=ROWS_AT_A_TIME):
    x = np.random.default_rng(1).normal(size=(count, WIDTH)).astype(np.float32)
    tables = [
        pa.table(
            {
                "id": np.arange(start, start + size),
                "x": pa.FixedSizeListArray.from_arrays(pa.array(x[start : start + size].ravel()), WIDTH),
            }
        )
        for start in range(0, count, size)
    ]
    return x, ray.data.from_arrow(tables)


def descendants(root):
    """Return the descendants of a process: id -> title."""
    parents, titles = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            number = int(folder.name)
            parents[number] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            titles[number] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")

    def is_ours(number):
        while number := parents.get(number, 0):
            if number == root:
                return True
        return False

    return {number: title for number, title in titles.items() if is_ours(number)}


def actors(root):
    """Processes of actors that run the program, busy or not."""
    return [number for number, title in descendants(root).items() if "MapBatches(BatchInference)" in title]


def run_and_kill(ray, kill, *, preserve_order):
    """Run a dataset, kill a process after the first rows, and return the rows before and after."""
    x, rows = dataset(ray)
    found = qaic.ray.map_batches(
        rows,
        slow_model(),
        num_actors=2,
        batch_size=ROWS_AT_A_TIME,
        preserve_order=preserve_order,
        options={"set_size": 1},
        num_cpus=0.5,
    )
    ids, results = [], []
    batches = found.iter_batches(batch_size=None, prefetch_batches=0)
    for batch in batches:
        if not ids:
            kill()
        ids += batch["id"].tolist()
        results.append(batch["y"])
    return x, ids, np.concatenate(results)


def check(x, ids, results):
    assert Counter(ids) == Counter(range(ROWS))
    with qaic.Session(slow_model()) as session:
        for index in (0, ROWS // 2, ROWS - 1):
            row = ids[index]
            start = row - row % BATCH
            alone = session.run(x=x[start : start + BATCH])["y"][row - start]
            assert results[index].tobytes() == alone.tobytes()
