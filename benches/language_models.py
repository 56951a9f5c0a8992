"""Load, memory and tokens per second of decoders of real size, by the form of weights.

    python benches/language_models.py --model 1.1B --forms MXFP6 --threads 1 2
    python benches/language_models.py --model 8B --forms MXFP6 --threads 2

Weights are random. The share is of the read bandwidth of the mapped container, measured between tokens of the
same process: the time of reading the bytes that a token reads, divided by the time of the token.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from python import checkpoints, large_decoders
from python.harness import machine
from python.harness.row import table
from python.harness.worker import in_process

_HALF = {"convert_to_fp16": True}
#: form -> element type of the model, bits of packed weights, compile options
FORMS: dict[str, tuple[int, int | None, dict[str, object]]] = {
    "float32": (1, None, {}),
    "float16": (10, None, _HALF),
    "MXFP6": (10, None, {**_HALF, "mxfp6_matmul": True, "mxint8_kv_cache": True}),
    "int8": (10, 8, _HALF),
    "int4": (10, 4, _HALF),
}
_HEADS = ("form", "threads", "container", "compile", "compile memory", "load", "private", "resident")
_MEASURED = ("bytes a token", "prompt", "a token", "share")
_SETTLED = 2
_REPEATS = 5


def main() -> None:
    """Measure every form, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="1.1B", choices=list(large_decoders.MODELS))
    parser.add_argument("--forms", nargs="+", default=["MXFP6"], choices=list(FORMS))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=16, help="tokens of a repeat")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        given = json.loads(arguments.measure)
        print(json.dumps((_measured if "container" in given else _compiled)(**given)))
        return
    for line in table(["", ""], [list(fact) for fact in machine.facts()]):
        print(line)
    print()
    for line in table([*_HEADS, *_MEASURED], []):
        print(line, flush=True)
    with tempfile.TemporaryDirectory(prefix="openqaic-bench-") as name:
        for form in arguments.forms:
            for threads in arguments.threads:
                print("| " + " | ".join(_row(Path(name), arguments, form, threads)) + " |", flush=True)


def _row(folder: Path, arguments: argparse.Namespace, form: str, threads: int) -> list[str]:
    place = folder / form
    facts = place / "compiled.json"
    if not facts.exists():
        place.mkdir()
        facts.write_text(json.dumps(_compile(place, arguments, form)))
    compiled = json.loads(facts.read_text())
    given = {"container": compiled["container"], "threads": threads, "tokens": arguments.tokens}
    found = in_process(__file__, **given, context=arguments.context)
    return [
        form,
        str(threads),
        f"{compiled['bytes'] / 1e6:,.0f} MB",
        f"{compiled['seconds']:.1f} s",
        f"{compiled['anonymous'] / 1e6:.0f} MB",
        f"{found['load']:.2f} s",
        f"{found['private'] / 1e6:.0f} MB",
        f"{found['resident'] / 1e6:,.0f} MB",
        f"{found['bytes'] / 1e6:,.0f} MB",
        f"{large_decoders.CHUNK / found['prompt']:.1f} tokens/s",
        f"{found['token'] * 1e3:.1f} ms, {1 / found['token']:.2f} tokens/s",
        f"{found['share']:.2f} of {found['bandwidth'] / 1e9:.1f} GB/s",
    ]


def _compile(place: Path, arguments: argparse.Namespace, form: str) -> dict[str, Any]:
    elem_type, bits, options = FORMS[form]
    sizes = large_decoders.sizes_of(arguments.model, arguments.context, elem_type)
    import decoder_model

    path = large_decoders.write_decoder(place, sizes, bits)
    shapes = decoder_model.specializations(large_decoders.CHUNK, context=arguments.context)
    settings = {
        "network_specialization_config": shapes,
        "retained_state": True,
        "aic_num_cores": 16,
        "output_dir": str(place / "program"),
        **options,
    }
    found = checkpoints.watched(Path(__file__), path, place / "cache", settings)
    for made in (path, place / "numbers.bin"):
        made.unlink()
    return found


def _compiled(path: str, **options: Any) -> dict[str, Any]:
    import qaic

    started = time.perf_counter()
    found = qaic.compile(path, **options)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "container": str(found.path), "bytes": Path(found.path).stat().st_size}


def _measured(container: str, threads: int, tokens: int, context: int) -> dict[str, float]:
    # The device takes as many threads as the process has processors.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    import qaic
    from qaic.cli.openqaic.program_fit import program_fit

    qpc = qaic.Qpc(container)
    read = program_fit(qpc, [])["weights"]["read_bytes"]
    pool = ThreadPoolExecutor(threads)
    numbers = np.memmap(container, np.uint64, "r", shape=(read // 8,))
    parts = np.array_split(numbers, threads)

    def bandwidth() -> float:
        started = time.perf_counter()
        list(pool.map(np.bitwise_or.reduce, parts))
        return read / (time.perf_counter() - started)

    bandwidth()
    before = _rollup("Anonymous")
    started = time.perf_counter()
    session = qaic.Session(qpc)
    session.setup()
    load = time.perf_counter() - started
    chunk = large_decoders.CHUNK
    places = np.arange(chunk)[None]
    found: dict[str, list[float]] = {"prompt": [], "token": [], "share": [], "bandwidth": []}
    for _ in range(_REPEATS):
        started = time.perf_counter()
        session.run({"input_ids": places, "position_ids": places})
        found["prompt"].append(time.perf_counter() - started)
    for repeat in range(_REPEATS):
        speed = bandwidth()
        start = chunk if repeat % 2 else context - tokens - _SETTLED
        for at in range(tokens + _SETTLED):
            if at == _SETTLED:
                started = time.perf_counter()
            session.run({"input_ids": [[at]], "position_ids": [[start + at]]})
        found["token"].append((time.perf_counter() - started) / tokens)
        found["bandwidth"].append(speed)
        found["share"].append(read / speed / found["token"][-1])
    medians = {name: statistics.median(times) for name, times in found.items()}
    return medians | {
        "load": load,
        "private": _rollup("Anonymous") - before,
        "resident": _rollup("Pss"),
        "bytes": read,
    }


def _rollup(field: str) -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    return 0


if __name__ == "__main__":
    main()
