"""Measure the costs of a cluster: actors, rows, memory, start, traffic.

python benches/scale.py            ten minutes on an idle machine with two cores
python benches/scale.py --quick    a short run

Run it in the environment of `make test-scale`. Ray, its nodes and its actors are processes of this machine
and use its loopback interface. One and two actors are measured in turns. The output includes the load of the
machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
from onnx import helper, numpy_helper
from python.harness.row import table

import qaic
import qaic.ray

BATCH = 8
PAGE = os.sysconf("SC_PAGE_SIZE")


def model(width: int, layers: int, distinct: int | None = None) -> onnx.ModelProto:
    """Build fully connected layers for batches of 8 rows, with this number of distinct weights."""
    distinct = distinct or layers
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array((rng.normal(size=(width, width)) / width**0.5).astype(np.float32), f"w{i}")
        for i in range(distinct)
    ]
    names = ["x", *(f"m{i}" for i in range(layers - 1)), "y"]
    nodes = [
        helper.make_node("MatMul", [names[i], f"w{i % distinct}"], [names[i + 1]]) for i in range(layers)
    ]
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [BATCH, width]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "layers", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def dataset(rows: int, width: int, rows_of_a_block: int):
    """Create rows in the process that reads them, block by block."""
    import ray

    def numbers(batch):
        ids = batch["id"]
        return {"id": ids, "x": np.repeat((ids % 997).astype(np.float32)[:, None], width, axis=1)}

    return ray.data.range(rows, override_num_blocks=-(-rows // rows_of_a_block)).map_batches(
        numbers, batch_size=rows_of_a_block, num_cpus=0.25
    )


def processor_s(title: str) -> float:
    """Total processor time of all processes whose title contains a text."""
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if title in (folder / "cmdline").read_text():
                ticks += sum(map(int, (folder / "stat").read_text().rsplit(")", 1)[1].split()[11:13]))
        except (OSError, ValueError):
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def run(rows: int, width: int, layers: int, actors: int) -> tuple[float, float]:
    """Run a dataset; return rows per second, and rows per second of the actors' processor time.

    Both rates are from the first to the last row, so they exclude the start of the actors.
    """
    x = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(rows * width, np.float32)), width)
    whole = pa.table({"x": x})
    import ray

    # A task is a block, and Ray takes about 30 ms to start a task, so blocks take a third of a second.
    blocks = ray.data.from_arrow([whole.slice(start, 512) for start in range(0, rows, 512)])
    found = qaic.ray.map_batches(
        blocks,
        # Its weights stay in the cache of a core, so actors do not compete for memory.
        model(width, layers, 1),
        num_actors=actors,
        batch_size=64,
        keep=[],
        # One core: with one thread, a second actor has its own processor.
        options={"aic_num_cores": 1, "num_activations": 1, "set_size": 1},
        num_cpus=0.5,
    )
    first = last = before_s = used_s = 0.0
    count = 0
    for batch in found.iter_batches(batch_size=None, prefetch_batches=0):
        last = time.perf_counter()
        now_s = processor_s("MapBatches(BatchInference)")
        if not first:
            first, before_s = last, now_s
        else:
            count += len(batch["y"])
            # The number is lower if actors have already ended.
            used_s = max(used_s, now_s - before_s)
    return count / (last - first), count / max(used_s, 1e-9)


def resident_bytes(title: str) -> int:
    """Memory of the largest process whose title contains a text."""
    found = [0]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if title in (folder / "cmdline").read_text():
                resident, shared = (int(text) for text in (folder / "statm").read_text().split()[1:3])
                found.append((resident - shared) * PAGE)
        except (OSError, ValueError):
            continue
    return max(found)


def own_bytes() -> int:
    """Memory of this process that it shares with no other process."""
    resident, shared = (int(text) for text in Path("/proc/self/statm").read_text().split()[1:3])
    return (resident - shared) * PAGE


def memory(rows: int) -> list[list[str]]:
    """Run many rows through one actor; return its memory after each tenth."""
    import ray

    found = qaic.ray.map_batches(
        dataset(rows, 256, 500), model(256, 1), batch_size=500, keep=["id"], num_cpus=0.5
    )
    lines, seen, ids = [], 0, 0
    total = ray.cluster_resources()["object_store_memory"]
    for batch in found.iter_batches(batch_size=None, prefetch_batches=0):
        before, seen = seen, seen + len(batch["id"])
        ids += int(batch["id"].sum())
        if before * 10 // rows != seen * 10 // rows:
            store = total - ray.available_resources().get("object_store_memory", total)
            lines.append(
                [
                    f"{seen:,}",
                    f"{resident_bytes('MapBatches(BatchInference)') / 1e6:.0f} MB",
                    f"{own_bytes() / 1e6:.0f} MB",
                    f"{store / 1e6:.0f} MB",
                ]
            )
    assert (seen, ids) == (rows, rows * (rows - 1) // 2), "rows were lost or doubled"
    return lines


def start_up(times: int) -> dict[str, list[float]]:
    """Measure the steps of an actor before its first row, one after another, in milliseconds."""
    import ray

    @ray.remote(num_cpus=0.5, resources={"QAIC": 1})
    class Actor:
        def __init__(self, called: float) -> None:
            self.process_s = time.time() - called

        def open(self, program) -> tuple[float, float, float, float]:
            started = time.perf_counter()
            from qaic.ray.batch_inference import BatchInference, Columns

            imported = time.perf_counter()
            qaic.claim_devices()
            claimed = time.perf_counter()
            BatchInference(program, Columns({}, None, None, "numpy"))
            loaded = time.perf_counter()
            return self.process_s, imported - started, claimed - imported, loaded - claimed

    from qaic.ray.shared_program import SharedProgram

    program, _ = SharedProgram.put(model(1024, 4), {}, 1)
    found: dict[str, list[float]] = {"process": [], "import": [], "claim": [], "load and try": []}
    for _ in range(times):
        actor = Actor.remote(time.time())
        for name, seconds in zip(found, ray.get(actor.open.remote(program)), strict=True):
            found[name].append(seconds * 1e3)
        ray.kill(actor)
    return found


def own_cost(rows: int) -> tuple[float, float]:
    """Microseconds of the calling thread for a row in `BatchInference`, and in `Session.run`."""
    from qaic.ray.batch_inference import BatchInference, Columns
    from qaic.ray.shared_program import SharedProgram

    program, _ = SharedProgram.put(model(256, 1), {}, 0)
    actor = BatchInference(program, Columns({}, None, (), "numpy"))
    x = np.ones((rows, 256), np.float32)
    batch = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 256)})
    ours, plain = [], []
    with qaic.Session(model(256, 1)) as session:
        for _ in range(21):
            started = time.thread_time()
            actor(batch)
            middle = time.thread_time()
            for start in range(0, rows, BATCH):
                session.run(x=x[start : start + BATCH])
            plain.append(time.thread_time() - middle)
            ours.append(middle - started)
    return statistics.median(ours) / rows * 1e6, statistics.median(plain) / rows * 1e6


def spread(values: list[float], digits: int = 0) -> str:
    """Median and range."""
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f} - {max(values):.{digits}f}]"


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("actors", "memory", "start", "cost"), action="append")
    arguments = parser.parse_args()
    chosen = arguments.only or ["cost", "start", "actors", "memory"]
    with tempfile.TemporaryDirectory(prefix="qs") as folder:
        os.environ |= {
            "QAIC_CPU_DEVICES": "2",
            "QAIC_CPU_SHARED": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
        }
        import ray

        ray.init(
            address="local",
            num_cpus=4,
            resources={"QAIC": 2},
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=300 << 20,
            _node_ip_address="127.0.0.2",
        )
        cores = len(os.sched_getaffinity(0))
        print(f"load average {os.getloadavg()[0]:.1f}, {cores} CPUs, Ray {ray.__version__}")
        if "cost" in chosen:
            ours, plain = own_cost(512)
            print(f"\na row of 1 KB: {ours:.1f} µs of the actor's thread; by Session.run {plain:.1f} µs")
        if "start" in chosen:
            found = start_up(3 if arguments.quick else 9)
            print("\nstart-up of an actor, one after another, in ms, with weights of 16 MB:")
            print(*(f"  {name}: {spread(values)}" for name, values in found.items()), sep="\n")
        if "actors" in chosen:
            turns, rows = (3 if arguments.quick else 7), 16_384
            rates = [[run(rows, 256, 1024, actors) for actors in (1, 2)] for _ in range(turns)]
            print("\nactors of one thread, rows per second, in turns:")
            for actors in (0, 1):
                print(f"  {actors + 1}: {spread([turn[actors][0] for turn in rates])}")
            for index, what in ((0, "(budget 1.7)"), (1, "of rows per second of processor time")):
                ratios = [two[index] / one[index] for one, two in rates]
                print(f"  2 beside 1: {spread(ratios, 2)} x {what}")
        if "memory" in chosen:
            rows = 20_000 if arguments.quick else 100_000
            header = ("rows", "actor, own", "driver, own", "object store")
            print(f"\n{rows:,} rows of 1 KB through one actor:")
            print(*table(list(header), memory(rows)), sep="\n")
        ray.shutdown()


if __name__ == "__main__":
    main()
