"""Tokens per second of llama.cpp, PyTorch and onnxruntime, for the decoders of `language_models.py`.

`language_models.py` runs this file, for llama.cpp and PyTorch with the Python of `--peers`, which needs no
openqaic. Peers are measured like openqaic: the same shapes, random weights, tokens at the same positions of
the context, and the read bandwidth in the same process.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from python.large_decoders import CHUNK, MODELS, sizes_of, write_decoder

if TYPE_CHECKING:
    from collections.abc import Callable

SETTLED = 2
REPEATS = 3
#: Form of a GGUF -> elements and bytes of a block, and the offset of its float16 scale.
_BLOCKS = {"F16": (1, 2, None), "Q8_0": (32, 34, 0), "Q6_K": (256, 210, 208), "Q4_0": (32, 18, 0)}
#: Peer -> forms of weights.
PEERS = {"llama.cpp": tuple(_BLOCKS), "PyTorch": ("float32", "bfloat16"), "onnxruntime": ("float32",)}
_MOST_READ = 1 << 30
_SEED = 20


def read_bandwidth(numbers: np.ndarray[Any, Any], threads: int) -> float:
    """Return the bytes per second at which threads read an array, the faster of two times.

    After a token, the first time takes up to twice as long; it depends on the order of the pages in memory.
    """
    parts = np.array_split(numbers.reshape(-1).view(np.uint8)[:_MOST_READ], threads)
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(2):
            started = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))
            seconds.append(time.perf_counter() - started)
    return sum(part.nbytes for part in parts) / min(seconds)


def measured(
    step: Callable[[list[int], int], object],
    read: int,
    bandwidth: Callable[[], float],
    *,
    context: int,
    tokens: int,
) -> dict[str, float]:
    """Time prompts and tokens.

    Parameters
    ----------
    step
        Runs tokens from a position of the context; later tokens are removed.
    read
        Bytes of weights that a token reads.
    bandwidth
        Measures the read bandwidth.
    context, tokens
        Length of the context, and tokens of a repeat.
    """
    bandwidth()
    found: dict[str, list[float]] = {"prompt": [], "token": [], "share": [], "bandwidth": []}
    prompt = list(range(CHUNK))
    for _ in range(REPEATS):
        started = time.perf_counter()
        step(prompt, 0)
        found["prompt"].append(time.perf_counter() - started)
    # Tokens after the prompt, then tokens near the end of the context.
    for first in (CHUNK, context - CHUNK):
        for start in range(CHUNK, first, CHUNK):
            step(prompt, start)
        for _ in range(REPEATS):
            speed = bandwidth()
            for at in range(tokens + SETTLED):
                if at == SETTLED:
                    started = time.perf_counter()
                step([at], first + at)
            found["token"].append((time.perf_counter() - started) / tokens)
            found["bandwidth"].append(speed)
            found["share"].append(read / speed / found["token"][-1])
    return {name: statistics.median(times) for name, times in found.items()} | {"bytes": read}


def rollup(field: str) -> int:
    """Return a sum over the memory of this process, in bytes."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    return 0


def _shapes(model: str) -> dict[str, tuple[int, ...]]:
    """Return the name and dims of each tensor of a GGUF."""
    sizes = MODELS[model]
    wide, narrow = sizes["heads"] * sizes["width"], sizes["groups"] * sizes["width"]
    layer = {
        "attn_norm": (wide,),
        "attn_q": (wide, wide),
        "attn_k": (narrow, wide),
        "attn_v": (narrow, wide),
        "attn_output": (wide, wide),
        "ffn_norm": (wide,),
        "ffn_gate": (sizes["inner"], wide),
        "ffn_up": (sizes["inner"], wide),
        "ffn_down": (wide, sizes["inner"]),
    }
    table = (sizes["vocabulary"], wide)
    return {
        "token_embd.weight": table,
        **{f"blk.{at}.{name}.weight": dims for at in range(sizes["layers"]) for name, dims in layer.items()},
        "output_norm.weight": (wide,),
        "output.weight": table,
    }


def _write_gguf(path: Path, model: str, form: str, context: int) -> int:
    """Write a model with random weights; return the bytes that a token reads."""
    import gguf

    sizes = MODELS[model]
    elements, nbytes, scale = _BLOCKS[form]
    shapes = _shapes(model)
    blocks = max(map(math.prod, shapes.values())) // elements
    codes = np.random.default_rng(_SEED).integers(0, 256, (blocks, nbytes), np.uint8)
    if scale is None:
        codes = (codes.view(np.int16).astype(np.float32) / (1 << 20)).astype(np.float16).view(np.uint8)
    else:
        codes[:, scale : scale + 2] = np.array([1 / 4096], np.float16).view(np.uint8)
    codes = codes.reshape(-1)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(context)
    writer.add_embedding_length(sizes["heads"] * sizes["width"])
    writer.add_block_count(sizes["layers"])
    writer.add_feed_forward_length(sizes["inner"])
    writer.add_head_count(sizes["heads"])
    writer.add_head_count_kv(sizes["groups"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(sizes["width"])
    writer.add_vocab_size(sizes["vocabulary"])
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{at}" for at in range(sizes["vocabulary"])])
    writer.add_token_scores([0.0] * sizes["vocabulary"])
    writer.add_token_types([1] * sizes["vocabulary"])
    read = 0
    for name, dims in shapes.items():
        if len(dims) == 1:
            writer.add_tensor(name, np.ones(dims, np.float32))
            continue
        rows, length = dims
        row = length // elements * nbytes
        kind = gguf.GGMLQuantizationType[form]
        writer.add_tensor(name, codes[: rows * row].reshape(rows, row), raw_dtype=kind)
        read += 0 if name == "token_embd.weight" else rows * row
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read


def _llama(folder: str, model: str, form: str, threads: int, context: int, tokens: int) -> dict[str, float]:
    import llama_cpp

    path = Path(folder) / f"{form}.gguf"
    facts = path.with_suffix(".json")
    if not facts.exists():
        facts.write_text(json.dumps(_write_gguf(path, model, form, context)))
    elements, nbytes, _ = _BLOCKS[form]
    mapped = np.memmap(path, np.uint8, "r")
    before = rollup("Anonymous")
    started = time.perf_counter()
    decoder = llama_cpp.Llama(
        str(path), n_ctx=context, n_batch=CHUNK, n_threads=threads, n_threads_batch=threads, verbose=False
    )
    load = time.perf_counter() - started

    def step(given: list[int], start: int) -> None:
        decoder.n_tokens = start
        decoder.eval(given)

    found = measured(
        step,
        json.loads(facts.read_text()),
        lambda: read_bandwidth(mapped, threads),
        context=context,
        tokens=tokens,
    )
    return found | {
        "load": load,
        "private": rollup("Anonymous") - before,
        "resident": rollup("Pss"),
        "file": path.stat().st_size,
        "each": nbytes / elements,
    }


def _torch(folder: str, model: str, form: str, threads: int, context: int, tokens: int) -> dict[str, float]:
    import torch
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    del folder
    torch.set_num_threads(threads)
    sizes = MODELS[model]
    config = LlamaConfig(
        vocab_size=sizes["vocabulary"],
        hidden_size=sizes["heads"] * sizes["width"],
        intermediate_size=sizes["inner"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["groups"],
        head_dim=sizes["width"],
        max_position_embeddings=context,
    )
    numbers = np.ones(_MOST_READ // 2, np.uint8)
    before = rollup("Anonymous")
    torch.set_default_dtype(getattr(torch, form))
    decoder = LlamaForCausalLM(config).eval()
    table = decoder.get_input_embeddings().weight
    read = sum(weight.nbytes for weight in decoder.parameters() if weight.dim() > 1 and weight is not table)
    cache = DynamicCache()

    @torch.inference_mode()
    def step(given: list[int], start: int) -> None:
        if start < cache.get_seq_length():
            # The number of tokens to remove, as a negative number.
            cache.crop(start - cache.get_seq_length())
        decoder(input_ids=torch.tensor([given]), past_key_values=cache, use_cache=True, logits_to_keep=1)

    found = measured(step, read, lambda: read_bandwidth(numbers, threads), context=context, tokens=tokens)
    each = table.element_size()
    return found | {
        "private": rollup("Anonymous") - before,
        "resident": rollup("Pss") - numbers.nbytes,
        "each": each,
    }


def _onnxruntime(
    folder: str, model: str, form: str, threads: int, context: int, tokens: int
) -> dict[str, float]:
    import onnxruntime

    sizes = sizes_of(model, context, 1)
    import decoder_model

    # The engine refuses rows outside the cache, which a card treats as padding.
    decoder_model.OUTSIDE = 0
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = write_decoder(Path(place), sizes)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        numbers = np.ones(_MOST_READ // 2, np.uint8)
        before = rollup("Anonymous")
        started = time.perf_counter()
        engine = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
        load = time.perf_counter() - started
    caches = {name: np.zeros(sizes.cache_shape(), form) for name in sizes.caches}

    def step(given: list[int], start: int) -> None:
        places = np.arange(start, start + len(given))
        feeds = {"input_ids": np.array([given]), "position_ids": places[None]}
        _, *written = engine.run(None, feeds | caches)
        caches.update(zip(sizes.caches, written, strict=True))

    shapes = decoder_model.weight_shapes(sizes)
    item = np.dtype(form).itemsize
    read = item * sum(
        math.prod(dims) for name, dims in shapes.items() if name != "embed_tokens" and len(dims) == 2
    )
    found = measured(step, read, lambda: read_bandwidth(numbers, threads), context=context, tokens=tokens)
    return found | {
        "load": load,
        "private": rollup("Anonymous") - before,
        "resident": rollup("Pss") - numbers.nbytes,
        "each": item,
    }


def main() -> None:
    """Print the figures of one peer as JSON, or the reason why it is skipped."""
    given = json.loads(sys.argv[2])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given["threads"]])
    measure = {"llama.cpp": _llama, "PyTorch": _torch, "onnxruntime": _onnxruntime}[given.pop("peer")]
    try:
        found: dict[str, Any] = measure(**given)
    except (ImportError, OSError, RuntimeError) as error:
        found = {"skipped": " ".join(str(error).split())}
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
