"""Run a model over the rows of Parquet files on a Ray cluster, and write the results as Parquet.

pip install '.[ray]'
python examples/ray/batch_job.py model.onnx rows results [ACTORS]

Without a cluster, the job starts Ray with the number of devices as the resource ``QAIC``. With
``RAY_ADDRESS``, it uses the nodes of that cluster. The columns of the rows have the names of the inputs.
"""

from __future__ import annotations

import os
import sys

import ray

import qaic
import qaic.ray


def main(model: str, rows: str, results: str, actors: int | str = 1) -> None:
    """Read, run and write."""
    if "RAY_ADDRESS" in os.environ:
        ray.init()
    else:
        ready = [device for device in qaic.devices() if device.is_ready]
        # A loopback address, which no other host reaches.
        ray.init(resources={"QAIC": len(ready)}, include_dashboard=False, _node_ip_address="127.0.0.2")
    dataset = qaic.ray.map_batches(
        ray.data.read_parquet(rows), model, num_actors=(1, int(actors)), output_format="arrow"
    )
    dataset.write_parquet(results)
    print(f"{ray.data.read_parquet(results).count()} rows in {results}")


if __name__ == "__main__":
    main(*sys.argv[1:])
