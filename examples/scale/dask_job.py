"""Run a model over the rows of a file on Dask, and write the results in the same order.

pip install . 'dask[distributed]'
python examples/scale/dask_job.py model.onnx rows.npy results.npy [SCHEDULER]

In a cluster, start one worker process for each card of a host, with one card each:

    dask worker SCHEDULER --nthreads 1 --nworkers 4 --resources QAIC=1

Dask counts resources but assigns no ids, so the process of each worker claims its card.
"""

from __future__ import annotations

import sys

import numpy as np
from dask.distributed import Client, LocalCluster, get_worker

import qaic

ROWS = 64


def opened(container: bytes) -> qaic.Session:
    """Claim a card and load the program, once in each worker, which keeps the session."""
    sessions: dict[bytes, qaic.Session] = vars(get_worker()).setdefault("qaic_sessions", {})
    if container not in sessions:
        qaic.claim_devices()
        sessions[container] = qaic.Session(container)
    return sessions[container]


def infer(container: bytes, rows: np.ndarray) -> np.ndarray:
    """Run a program over rows; copies of the last row fill the last batch."""
    session = opened(container)
    size = session.inputs[0].shape[0]
    starts = range(0, len(rows), size)
    batches = (rows[np.minimum(np.arange(at, at + size), len(rows) - 1)] for at in starts)
    name = session.outputs[0].name
    return np.concatenate([outputs[name] for outputs in session.map(batches)])[: len(rows)]


def run(client: Client, model: str, rows: np.ndarray) -> np.ndarray:
    """Return the results of all rows, in order. Dask replaces a worker that ends, and repeats its tasks."""
    container = client.scatter(qaic.compile(model).content.tobytes(), broadcast=True)
    pieces = [rows[start : start + ROWS] for start in range(0, len(rows), ROWS)]
    tasks = client.map(infer, [container] * len(pieces), pieces, pure=False, resources={"QAIC": 1}, retries=2)
    return np.concatenate(client.gather(tasks))


def main(model: str, source: str, target: str, scheduler: str | None = None) -> None:
    """Read, run and write."""
    rows = np.load(source)
    if scheduler is None:
        ready = [device for device in qaic.devices() if device.is_ready]
        cluster = LocalCluster(
            n_workers=len(ready), threads_per_worker=1, resources={"QAIC": 1}, dashboard_address=None
        )
        with cluster, Client(cluster) as client:
            results = run(client, model, rows)
    else:
        with Client(scheduler) as client:
            results = run(client, model, rows)
    np.save(target, results)
    print(f"{len(rows)} rows, results of shape {results.shape} in {target}")


if __name__ == "__main__":
    main(*sys.argv[1:])
