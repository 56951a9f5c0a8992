"""Load time, memory and tokens per second of decoders of real size, compared with llama.cpp and PyTorch.

    python benches/language_models.py --peers PYTHON --write    every form and peer of 1.1B; 10 to 27 minutes
    python benches/language_models.py --model 8B --forms MXFP6 --threads 2

PYTHON is an interpreter with llama-cpp-python, gguf, torch and transformers. A peer that is not installed is
skipped, with the reason; onnxruntime needs no `--peers`. `--write` writes the table to
docs/language-models.md, and its limits to docs/performance.md.

Weights are random. The limit is the rate at which the same threads read the mapped weights, measured between
tokens in the same process. The share of the limit is the time to read the weights of a token, divided by the
time of the token.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import decoder_peers
import numpy as np
from python import checkpoints, language_table, large_decoders
from python.harness import machine
from python.harness.row import table
from python.harness.spread import digits3
from python.harness.worker import in_process

if TYPE_CHECKING:
    from collections.abc import Iterator

_HALF = {"convert_to_fp16": True}
#: Form -> element type of the model, bits of packed weights, compile options.
FORMS: dict[str, tuple[int, int | None, dict[str, object]]] = {
    "float32": (1, None, {}),
    "float16": (10, None, _HALF),
    "MXFP6": (10, None, {**_HALF, "mxfp6_matmul": True, "mxint8_kv_cache": True}),
    "int8": (10, 8, _HALF),
    "int4": (10, 4, _HALF),
}
_HEADS = (
    "program", "weights", "threads", "file", "bytes per weight", "compile time, memory", "load time",
    "private memory", "resident memory", "prompt, tokens/s", "tokens/s", "read, GB/s", "limit, GB/s",
    "share of the limit",
)  # fmt: skip


def main() -> None:
    """Measure every form and peer, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="1.1B", choices=list(large_decoders.MODELS))
    parser.add_argument("--forms", nargs="*", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=16, help="tokens of a repeat")
    parser.add_argument("--peers", metavar="PYTHON", help="interpreter that has llama.cpp and PyTorch")
    parser.add_argument("--write", action="store_true", help="put the table into the pages")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        given = json.loads(arguments.measure)
        print(json.dumps((_measured if "container" in given else _compiled)(**given)))
        return
    lines = []
    for line in _lines(arguments):
        print(line, flush=True)
        lines.append(line)
    if arguments.write:
        language_table.write(lines)


def _lines(arguments: argparse.Namespace) -> Iterator[str]:
    facts = dict(machine.facts())
    where = f"{facts['CPU']}, {facts['date']}, commit {facts['commit']}"
    yield f"{arguments.model}, context of {arguments.context}, {where}:"
    yield ""
    yield from table([*_HEADS], [])
    skipped = []
    shared = {name: getattr(arguments, name) for name in ("model", "context", "tokens")}
    with tempfile.TemporaryDirectory(prefix="openqaic-bench-") as name:
        for form in arguments.forms:
            for threads in arguments.threads:
                yield _line(_row(Path(name), arguments, form, threads))
            shutil.rmtree(Path(name) / form)
        peers = [(peer, form) for peer, forms in decoder_peers.PEERS.items() for form in forms]
        for peer, form in peers:
            # openqaic itself needs onnxruntime.
            interpreter = sys.executable if peer == "onnxruntime" else arguments.peers
            if interpreter is None or (peer == "onnxruntime" and form not in arguments.forms):
                continue
            for threads in arguments.threads:
                given = {"peer": peer, "form": form, "threads": threads, "folder": name, **shared}
                try:
                    found = in_process(decoder_peers.__file__, interpreter=interpreter, **given)
                except subprocess.CalledProcessError as error:
                    found = {"skipped": f"{form} ended with {error.returncode}"}
                if "skipped" in found:
                    skipped.append(f"{peer} ({found['skipped']})")
                    break
                yield _line([peer, form, str(threads), *_peer_file(found), *_figures(found)])
            (Path(name) / f"{form}.gguf").unlink(missing_ok=True)
    if not arguments.peers:
        skipped.append("llama.cpp and PyTorch (no --peers)")
    yield from ["", f"Not measured: {', '.join(dict.fromkeys(skipped))}."] if skipped else []


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _row(folder: Path, arguments: argparse.Namespace, form: str, threads: int) -> list[str]:
    place = folder / form
    facts = place / "compiled.json"
    if not facts.exists():
        place.mkdir()
        facts.write_text(json.dumps(_compile(place, arguments, form)))
    compiled = json.loads(facts.read_text())
    given = {"container": compiled["container"], "threads": threads, "tokens": arguments.tokens}
    found = in_process(__file__, **given, context=arguments.context)
    compiling = f"{compiled['seconds']:.1f} s, {compiled['anonymous'] / 1e6:.0f} MB"
    file = f"{compiled['bytes'] / 1e9:.2f} GB"
    return [
        "openqaic", form, str(threads), file, f"{found['each']:.2f}", compiling, *_figures(found)
    ]  # fmt: skip


def _peer_file(found: dict[str, float]) -> list[str]:
    size = f"{found['file'] / 1e9:.2f} GB" if "file" in found else ""
    return [size, f"{found['each']:.2f}", ""]


def _figures(found: dict[str, float]) -> list[str]:
    return [
        f"{found['load']:.2f} s" if "load" in found else "",
        _memory(found["private"]),
        _memory(found["resident"]),
        digits3(large_decoders.CHUNK / found["prompt"]),
        digits3(1 / found["token"]),
        digits3(found["bytes"] / found["token"] / 1e9),
        digits3(found["bandwidth"] / 1e9),
        f"{found['share']:.2f}",
    ]


def _memory(size: float) -> str:
    return f"{digits3(size / 1e9)} GB" if size >= 1e9 else f"{digits3(size / 1e6)} MB"


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
    # The device uses as many threads as the process has processors.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    import qaic
    from qaic.cli.stored_weights import stored_weights

    qpc = qaic.Qpc(container)
    weights = stored_weights(qpc)
    if weights is None:
        raise SystemExit(f"{container} has no stored weights")
    mapped = np.memmap(container, np.uint8, "r")
    decoder_peers.read_bandwidth(mapped, threads)
    before = decoder_peers.rollup("Anonymous")
    started = time.perf_counter()
    session = qaic.Session(qpc)
    session.setup()
    load = time.perf_counter() - started

    def step(given: list[int], start: int) -> None:
        places = np.arange(start, start + len(given))
        session.run({"input_ids": [given], "position_ids": places[None]})

    found = decoder_peers.measured(
        step,
        weights["read_bytes"],
        lambda: decoder_peers.read_bandwidth(mapped, threads),
        context=context,
        tokens=tokens,
    )
    return found | {
        "load": load,
        "private": decoder_peers.rollup("Anonymous") - before,
        "resident": decoder_peers.rollup("Pss"),
        "each": weights["bytes_per_weight"],
    }


if __name__ == "__main__":
    main()
