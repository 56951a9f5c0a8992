"""Speed of decoding and memory by the form of weights, compared with unstored weights and read bandwidth.

The model is a chain of products with one row of activations, of any size, with its own checkpoint:

    python benches/stored_weights.py --gigabytes 0.8 --threads 1 2

The bandwidth is that of reading the mapped container once. It is measured between inferences in the same
process, so ratios compare neighboring measurements.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from python import checkpoints
from python.harness.row import table
from python.harness.worker import in_process

#: Form -> types of the checkpoint and of the model, and compile options.
FORMS: dict[str, tuple[str, str, dict[str, object]]] = {
    "float32": ("F32", "float32", {}),
    "float16": ("F16", "float16", {"convert_to_fp16": True}),
    "MXFP6": ("F16", "float16", {"convert_to_fp16": True, "mxfp6_matmul": True}),
}
_ROWS = 4096
_REPEATS = 7


def main() -> None:
    """Measure every form, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=0.8, help="size of the weights in float32")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        sys.stdout.write(json.dumps(_measured(**json.loads(arguments.measure))))
        return
    heads = ["form", "threads", "way", "container", "load", "private bytes per weight", "a row", "share"]
    for line in table(heads, []):
        print(line)
    with tempfile.TemporaryDirectory(prefix="openqaic-bench-") as name:
        for form in arguments.forms:
            _report(Path(name) / form, form, arguments.gigabytes, arguments.threads)


def _report(folder: Path, form: str, gigabytes: float, threads: list[int]) -> None:
    import qaic

    stored, declared, options = FORMS[form]
    share = {"F32": 1.0, "F16": 0.5}[stored]
    folder.mkdir()
    model, _ = checkpoints.write_checkpoint(folder, int(gigabytes * share * 1e9), stored, declared)
    for count in threads:
        for way, more in (("stored", {}), ("plain", {"stored_weights": False})):
            path = qaic.compile(
                model, output_dir=folder / f"{way}{count}", aic_num_cores=count, **options, **more
            )
            found = in_process(__file__, path=str(path.path), threads=count, declared=declared)
            weights = gigabytes * 1e9 / 4
            print(
                f"| {form} | {count} | {way} | {found['bytes'] / 1e6:.0f} MB | {found['load']:.2f} s "
                f"| {found['private'] / weights:.2f} | {found['row'] * 1e3:.1f} ms | {found['share']:.2f} |",
                flush=True,
            )


def _measured(path: str, threads: int, declared: str) -> dict[str, float]:
    import qaic

    file = Path(path)
    numbers = np.memmap(file, np.uint64, "r", shape=file.stat().st_size // 8)
    parts = np.array_split(numbers, threads)
    pool = ThreadPoolExecutor(threads)

    def read() -> float:
        started = time.perf_counter()
        list(pool.map(np.add.reduce, parts))
        return time.perf_counter() - started

    x = np.ones((1, _ROWS), declared)
    # Memory of the engine and the interpreter is excluded.
    read()
    before = _anonymous()
    started = time.perf_counter()
    session = qaic.Session(path)
    load = time.perf_counter() - started
    session.run({"x": x})
    private = _anonymous() - before
    rows, shares = [], []
    for _ in range(_REPEATS):
        reading = read()
        started = time.perf_counter()
        session.run({"x": x})
        rows.append(time.perf_counter() - started)
        shares.append(reading / rows[-1])
    return {
        "bytes": file.stat().st_size,
        "load": load,
        "private": private,
        "row": statistics.median(rows),
        "share": statistics.median(shares),
    }


def _anonymous() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) << 10
    return 0


if __name__ == "__main__":
    main()
