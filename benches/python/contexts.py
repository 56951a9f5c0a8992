"""A token of a Llama by the length of the context that was compiled and by the tokens that are attended."""

from __future__ import annotations

import gc
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .row import Row, at_least
from .spread import Spread, ratios
from .worker import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .effort import Effort

#: compiled context -> how many times the tokens per second of onnxruntime
BUDGETS = {128: 1.1, 1024: 1.5, 4096: 2.0}
_TESTS = Path(__file__).parents[2] / "tests"
_ATTENDED = 32
_TOKENS = 16
_CHUNK = 8


def _steps_of_ours(model: Any, context: int, threads: int, folder: str) -> Callable[[int, int], Any]:
    import decoder_model
    from decoder_client import Client
    from qaic.compiler import compile_model
    from qaic.options import resolve

    given = {
        "network_specialization_config": decoder_model.specializations(_CHUNK, context=context),
        "retained_state": True,
        "aic_num_cores": threads,
    }
    found = resolve(given, options_path=None, model_is_container=False)
    output = Path(folder) / f"context-{context}-{threads}"
    client = Client(compile_model(model, found.compile, found.set_compile, output_dir=output).parent)
    client.skip_caches()
    return lambda token, position: client.step(token, position)["logits"]


def _steps_of_theirs(model: Any, sizes: Any, threads: int) -> Callable[[int, int], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    engine = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    caches = {name: np.zeros(sizes.cache_shape(), np.float32) for name in sizes.caches}

    def step(token: int, position: int) -> Any:
        feeds = {"input_ids": np.array([[token]]), "position_ids": np.array([[position]])}
        logits, *written = engine.run(None, feeds | caches)
        caches.update(zip(sizes.caches, written, strict=True))
        return logits

    return step


def context_steps(context: int, threads: int, folder: str, batches: int) -> dict[str, list[float]]:
    """Measure tokens of both sides, in seconds per token, few and nearly all attended (in a worker)."""
    sys.path.insert(0, str(_TESTS))
    import decoder_model

    sizes = decoder_model.Sizes(layers=8, heads=8, groups=2, width=64, vocabulary=8192, context=context)
    ours = _steps_of_ours(decoder_model.decoder(sizes), context, threads, folder)
    # Rows outside of the cache are read from its begin: the engine refuses what a card takes for padding.
    decoder_model.OUTSIDE = 0
    theirs = _steps_of_theirs(decoder_model.decoder(sizes), sizes, threads)
    for position in range(4):
        np.testing.assert_allclose(ours(position, position), theirs(position, position), rtol=1e-3, atol=1e-3)
    results: dict[str, list[float]] = {}
    gc.collect()
    gc.disable()
    for _ in range(batches):
        for attended in (_ATTENDED, context - _TOKENS):
            for side, step in (("ours", ours), ("theirs", theirs)):
                step(0, attended - 1)
                started = time.perf_counter()
                for number in range(_TOKENS):
                    step(number, attended + number)
                taken = (time.perf_counter() - started) / _TOKENS
                results.setdefault(f"{side} {'few' if attended == _ATTENDED else 'full'}", []).append(taken)
    return results


def context_rows(folder: str, effort: Effort) -> Iterator[Row]:
    """Rows of the group `contexts`."""
    threads_of_host = len(os.sched_getaffinity(0))
    for threads in (1, 2) if threads_of_host > 1 else (1,):
        for context, budget in BUDGETS.items():
            measured = measure(
                "context_steps", context=context, threads=threads, folder=folder, batches=effort.batches
            )
            for kind, attended in (("few", f"{_ATTENDED} attended"), ("full", "nearly full")):
                ours, theirs = measured[f"ours {kind}"], measured[f"theirs {kind}"]
                beside = (("caches in and out", Spread.of(theirs, "s")),)
                title = f"context {context}, {attended}, {threads} thread{'s' if threads > 1 else ''}"
                yield Row(title, Spread.of(ours, "s"), beside, **at_least(ratios(theirs, ours), budget))
