"""Send the rows of a file to a server, many at a time, and write the results in the same order.

pip install 'tritonclient[grpc]'
python examples/serving/batch_job.py rows.npy results.npy [GRPC_PORT]

The server combines waiting requests in one inference, so the job keeps several requests in flight. If the
queue of the server is full, the server refuses a request at once, and the job repeats it.
"""

from __future__ import annotations

import asyncio
import sys

import numpy as np
import tritonclient.grpc.aio as triton

MODEL, INPUT, OUTPUT = "affine", "x", "y"
IN_FLIGHT = 32
ROWS = 4
FULL = "StatusCode.RESOURCE_EXHAUSTED"


async def infer(client: triton.InferenceServerClient, rows: np.ndarray) -> np.ndarray:
    """Return the results of some rows; wait and repeat the request while the queue is full."""
    given = triton.InferInput(INPUT, list(rows.shape), "FP32")
    given.set_data_from_numpy(rows)
    delay_s = 0.01
    while True:
        try:
            return (await client.infer(MODEL, [given])).as_numpy(OUTPUT)
        except triton.InferenceServerException as error:
            if error.status() != FULL or delay_s > 60:
                raise
        await asyncio.sleep(delay_s)
        delay_s *= 1.5


async def run(rows: np.ndarray, port: int | str) -> np.ndarray:
    """Return the results of all rows, in order."""
    client = triton.InferenceServerClient(f"127.0.0.1:{port}")
    pieces = [rows[start : start + ROWS] for start in range(0, len(rows), ROWS)]
    results: list[np.ndarray] = [rows] * len(pieces)
    left = iter(range(len(pieces)))

    async def work() -> None:
        for index in left:
            results[index] = await infer(client, pieces[index])

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(work())
    finally:
        await client.close()
    return np.concatenate(results)


def main(source: str, target: str, port: int | str = 8001) -> None:
    """Read, send and write."""
    rows = np.load(source)
    results = asyncio.run(run(rows, port))
    np.save(target, results)
    print(f"{len(rows)} rows, results of shape {results.shape} in {target}")


if __name__ == "__main__":
    main(*sys.argv[1:])
