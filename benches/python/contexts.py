"""Time of a Llama's token by the compiled context and by the number of attended tokens."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import itertools
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .harness.row import Row, at_least
from .harness.spread import Spread, ratios
from .harness.timing import REST_S
from .harness.worker import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from .harness.effort import Effort

#: Compiled context -> required multiple of onnxruntime's tokens per second.
BUDGETS = {128: 1.1, 1024: 1.5, 4096: 2.0}
#: Required multiple of PyTorch's tokens per second.
_BUDGET_OF_TORCH = 1.0
LAYERS = (8, 32)
_MODELS = Path(__file__).parents[2] / "tests" / "models"
_ATTENDED = 32
_TOKENS = 16
#: Tokens before the measured ones, because caches of the processor are cold after a rest.
_WARM = 4
_CHUNK = 8
_WIDTHS = {"heads": 8, "groups": 2, "width": 64, "vocabulary": 8192}
#: Operators that copy numbers, and operators that work on sizes.
_MOVES = ("Slice", "Split", "ScatterND", "GatherND", "Expand", "Where", "Concat", "Transpose", "AttendedRows")
_SIZES = ("Shape", "Gather", "Unsqueeze", "Squeeze", "Reshape", "ConstantOfShape", "Range", "Cast")
_PRODUCTS = ("MatMul", "FusedMatMul", "Gemm")


def _compiled(model: Any, context: int, threads: int, folder: str, **options: object) -> Path:
    import decoder_model
    from qaic.compiler.driver import compile_model
    from qaic.options import resolve

    given = {
        "network_specialization_config": decoder_model.specializations(_CHUNK, context=context),
        "retained_state": True,
        "aic_num_cores": threads,
        **options,
    }
    found = resolve(given, options_path=None, model_is_container=False)
    name = "-".join(("context", str(context), str(threads), *options))
    return compile_model(model, found.compile, found.set_compile, output_dir=Path(folder) / name)


def _steps_of_ours(model: Any, context: int, threads: int, folder: str) -> Callable[[int, int], Any]:
    from decoder_client import Client

    client = Client(_compiled(model, context, threads, folder).parent)
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


def has_torch() -> bool:
    """Return True if PyTorch and transformers are available for the comparison."""
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def _turns_of_torch(layers: int, context: int, threads: int) -> Callable[[int], float]:
    """Return a function that generates tokens after given tokens, and returns the seconds of each."""
    import torch
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    heads, width = _WIDTHS["heads"], _WIDTHS["width"]
    config = LlamaConfig(
        vocab_size=_WIDTHS["vocabulary"],
        hidden_size=heads * width,
        intermediate_size=2 * heads * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=_WIDTHS["groups"],
        head_dim=width,
        max_position_embeddings=context,
    )
    model = LlamaForCausalLM(config).eval()
    prompts: dict[int, tuple[Any, Any]] = {}

    class Clock:
        """Records when `generate` has a token."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def put(self, _: Any) -> None:
            self.times.append(time.perf_counter())

        def end(self) -> None:
            pass

    def turn(attended: int) -> float:
        if attended not in prompts:
            tokens = torch.randint(0, _WIDTHS["vocabulary"], (1, attended))
            cache = DynamicCache()
            with torch.no_grad():
                model(tokens[:, :-1], past_key_values=cache)
            prompts[attended] = tokens, cache
        tokens, cache = prompts[attended]
        clock = Clock()
        length = {"max_new_tokens": _TOKENS, "min_new_tokens": _TOKENS}
        model.generate(
            tokens, past_key_values=cache, do_sample=False, pad_token_id=0, streamer=clock, **length
        )
        cache.crop(attended - 1)
        # The first time is that of the prompt. The first token includes the preparation of `generate`.
        times = clock.times[1:]
        return (times[-1] - times[0]) / (len(times) - 1)

    return turn


def _steps(kind: str, context: int, threads: int, layers: int, folder: str) -> Callable[[int, int], Any]:
    sys.path[:0] = [str(_MODELS.parent), str(_MODELS)]
    import decoder_model

    sizes = decoder_model.Sizes(layers=layers, context=context, **_WIDTHS)
    if kind == "ours":
        return _steps_of_ours(decoder_model.decoder(sizes), context, threads, folder)
    # Rows outside the cache are read from its start: the engine refuses rows that a card treats as padding.
    decoder_model.OUTSIDE = 0
    return _steps_of_theirs(decoder_model.decoder(sizes), sizes, threads)


def _turns_of_steps(step: Callable[[int, int], Any]) -> Callable[[int], float]:
    def turn(attended: int) -> float:
        for number in range(_WARM):
            step(number, attended - _WARM + number)
        started = time.perf_counter()
        for number in range(_TOKENS):
            step(number, attended + number)
        return (time.perf_counter() - started) / _TOKENS

    return turn


def _side(pipe: Connection, kind: str, context: int, threads: int, layers: int, folder: str) -> None:
    """Prepare one side, send its first logits, then run a turn for each request until the request is for
    none.
    """
    if kind == "torch":
        turn, logits = _turns_of_torch(layers, context, threads), None
    else:
        step = _steps(kind, context, threads, layers, folder)
        logits = [step(position, position) for position in range(4)]
        turn = _turns_of_steps(step)
    gc.collect()
    gc.disable()
    pipe.send(logits)
    while attended := pipe.recv():
        pipe.send(turn(attended))


def context_steps(
    context: int, threads: int, layers: int, folder: str, batches: int
) -> dict[str, list[float]]:
    """Measure tokens of all sides in seconds per token, with few and with nearly all attended (in a worker).

    Each side is a process, and a turn starts after a rest. Idle threads of onnxruntime spin for about 30 ms;
    without the rest, they would take a core from the next side on a host with as many cores as a side has
    threads.
    """
    kinds = ("ours", "theirs", *(("torch",) if has_torch() else ()))
    spawn = multiprocessing.get_context("spawn")
    results: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        pipes: dict[str, Connection] = {}
        first: dict[str, Any] = {}
        for kind in kinds:
            pipes[kind], theirs = spawn.Pipe()
            side = spawn.Process(
                target=_side, args=(theirs, kind, context, threads, layers, folder), daemon=True
            )
            side.start()
            theirs.close()
            stack.callback(side.join)
            stack.callback(pipes[kind].send, 0)
            first[kind] = pipes[kind].recv()
        for ours, other in zip(first["ours"], first["theirs"], strict=True):
            np.testing.assert_allclose(ours, other, rtol=1e-3, atol=1e-3)
        for _ in range(batches):
            for attended in (_ATTENDED, context - _TOKENS):
                shown = "few" if attended == _ATTENDED else "full"
                for kind in kinds:
                    time.sleep(REST_S)
                    pipes[kind].send(attended)
                    results.setdefault(f"{kind} {shown}", []).append(pipes[kind].recv())
    return results


def context_rows(folder: str, effort: Effort) -> Iterator[Row]:
    """Rows of the group `contexts`."""
    threads_of_host = len(os.sched_getaffinity(0))
    cases = itertools.product(LAYERS, (1, 2) if threads_of_host > 1 else (1,), BUDGETS.items())
    for layers, threads, (context, budget) in cases:
        measured = measure(
            "context_steps",
            context=context,
            threads=threads,
            layers=layers,
            folder=str(Path(folder) / f"layers-{layers}"),
            batches=effort.batches,
        )
        for kind, attended in (("few", f"{_ATTENDED} attended"), ("full", "nearly full")):
            ours, theirs = measured[f"ours {kind}"], measured[f"theirs {kind}"]
            beside = (("caches in and out", Spread.of(theirs, "s")),)
            title = f"{layers} layers, context {context}, {attended}, {threads} thread"
            title += "s" if threads > 1 else ""
            yield Row(title, Spread.of(ours, "s"), beside, **at_least(ratios(theirs, ours), budget))
            torch = measured.get(f"torch {kind}")
            if torch is not None:
                beside = (("PyTorch `generate`", Spread.of(torch, "s")),)
                spread = at_least(ratios(torch, ours), _BUDGET_OF_TORCH)
                yield Row(title, Spread.of(ours, "s"), beside, **spread)


def context_operations(context: int, layers: int, folder: str) -> dict[str, dict[str, int]]:
    """Count the operations that the engine runs for a token, by kind (in a worker)."""
    sys.path[:0] = [str(_MODELS.parent), str(_MODELS)]
    import onnx
    import onnxruntime

    import decoder_model
    from qaic import _core

    sizes = decoder_model.Sizes(layers=layers, context=context, **_WIDTHS)
    model = decoder_model.decoder(sizes)
    place = Path(folder) / f"operations-{layers}"
    graphs = {}
    for name, options in (("default", {}), ("`whole_caches`", {"whole_caches": True})):
        program = _compiled(model, context, 1, str(place), **options)
        optimized = place / name.strip("`")
        optimized.mkdir()
        graphs[name] = Path(_core.save_optimized_graph(program, optimized))
    decoder_model.OUTSIDE = 0
    settings = onnxruntime.SessionOptions()
    graphs["onnxruntime, caches in and out"] = place / "theirs.onnx"
    settings.optimized_model_filepath = str(place / "theirs.onnx")
    settings.log_severity_level = 4
    onnxruntime.InferenceSession(
        decoder_model.decoder(sizes).SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    found = {}
    for name, path in graphs.items():
        kinds = [node.op_type for node in onnx.load(str(path), load_external_data=False).graph.node]
        found[name] = {
            "all operations": len(kinds),
            "products": sum(kind in _PRODUCTS for kind in kinds),
            "arithmetic": sum(kind not in {*_PRODUCTS, *_MOVES, *_SIZES} for kind in kinds),
            "copies": sum(kind in _MOVES for kind in kinds),
            "sizes and views": sum(kind in _SIZES for kind in kinds),
        }
    return found


def operations_of_a_token(folder: str) -> tuple[list[str], list[list[str]]]:
    """Operations that the engine runs for a token of `LAYERS` layers, by their task."""
    header: list[str] = []
    rows = []
    for layers in LAYERS:
        for name, counts in measure("context_operations", context=1024, layers=layers, folder=folder).items():
            header = ["layers", "program", *counts]
            rows.append([str(layers), name, *(f"{count:,}" for count in counts.values())])
    return header, rows
