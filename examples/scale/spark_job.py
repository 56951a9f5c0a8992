"""Run a model over the rows of Parquet files on Spark, and write the results as Parquet.

pip install . pyspark pandas pyarrow
python examples/scale/spark_job.py model.onnx rows results [MASTER]

A script reports the cards of a host to Spark, in the format of ``openqaic devices --format spark``. Spark
assigns cards to each executor and each task, and passes their addresses.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from pyspark import TaskContext
from pyspark.sql import SparkSession

import qaic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INPUT, OUTPUT = "x", "y"


def discovery_script(folder: str) -> str:
    """Write the script that Spark runs on each host; it takes no arguments."""
    path = Path(folder) / "discover_qaic.sh"
    path.write_text(f"#!/bin/sh\nexec {sys.executable} -m qaic devices --format spark\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def start(master: str | None, script: str) -> SparkSession:
    """Start Spark with one card for each executor and each task; without a master, on this host."""
    cards = sum(device.is_ready for device in qaic.devices())
    master = master or f"local-cluster[{cards},1,1024]"
    # Tasks run with the Python that contains the package, which may differ from that of the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        # A loopback address, which no other host reaches.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName("openqaic")
    settings = {
        "spark.ui.enabled": "false",
        "spark.executor.resource.qaic.amount": "1",
        "spark.executor.resource.qaic.discoveryScript": script,
        "spark.task.resource.qaic.amount": "1",
        # Cards of this host; the workers of a standalone cluster have a file for this.
        "spark.worker.resource.qaic.amount": str(cards),
        "spark.worker.resource.qaic.discoveryScript": script,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def inference(container: bytes) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """Return the function of a task, which loads the program once and runs all batches."""

    def run(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        os.environ["QAIC_VISIBLE_DEVICES"] = ",".join(TaskContext.get().resources()["qaic"].addresses)
        with qaic.Session(container) as session:
            size = session.inputs[0].shape[0]
            for frame in frames:
                rows = np.stack(frame[INPUT].to_numpy()).astype(np.float32)
                starts = range(0, len(rows), size)
                # Copies of the last row fill the last batch.
                batches = (rows[np.minimum(np.arange(at, at + size), len(rows) - 1)] for at in starts)
                results = np.concatenate([outputs[OUTPUT] for outputs in session.map(batches)])
                yield pd.DataFrame({"id": frame["id"], OUTPUT: list(results[: len(rows)])})

    return run


def main(model: str, rows: str, results: str, master: str | None = None) -> None:
    """Read, run and write."""
    container = qaic.compile(model).content.tobytes()
    with tempfile.TemporaryDirectory() as folder:
        spark = start(master, discovery_script(folder))
        found = spark.read.parquet(rows).mapInPandas(inference(container), f"id long, {OUTPUT} array<float>")
        found.write.mode("overwrite").parquet(results)
        spark.stop()
    print(f"results in {results}")


if __name__ == "__main__":
    main(*sys.argv[1:])
