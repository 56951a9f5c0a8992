"""A language model without weights, a checkpoint of any size for it, and the costs of compiling both."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .harness.worker import status_bytes

if TYPE_CHECKING:
    from typing import Any

_HIDDEN, _WIDE = 4096, 14336
_SEED = 20
#: Tensors of one file, about 2 GB of float16, as in published checkpoints.
_PER_FILE = 16
_SAMPLE_SECONDS = 0.002
#: Type in the checkpoint -> bytes of an element.
_BYTES = {"F16": 2, "BF16": 2, "F32": 4}
_ELEM_TYPES = {"float32": 1, "float16": 10}


def write_checkpoint(folder: Path, total_bytes: int, stored: str, declared: str) -> tuple[Path, list[Path]]:
    """Write a model whose weights of type `declared` are in files with type `stored`.

    Parameters
    ----------
    folder
        Empty folder.
    total_bytes
        Size of all weights, about.
    stored, declared
        ``F16``, ``BF16`` or ``F32``, and ``float32`` or ``float16``.
    """
    size = _HIDDEN * _WIDE * _BYTES[stored]
    layers = max(1, round(total_bytes / size / 2))
    shapes = {
        f"model.layers.{layer}.mlp.{name}.weight": shape
        for layer in range(layers)
        for name, shape in (("up_proj", (_WIDE, _HIDDEN)), ("down_proj", (_HIDDEN, _WIDE)))
    }
    values = (np.random.default_rng(_SEED).standard_normal(1 << 22, np.float32) / 64).astype(np.float32)
    block = {
        "F32": values.tobytes(),
        "F16": values.astype(np.float16).tobytes(),
        "BF16": (values.view(np.uint32) >> 16).astype(np.uint16).tobytes(),
    }[stored]
    names = list(shapes)
    files, places = [], {}
    for first in range(0, len(names), _PER_FILE):
        part = names[first : first + _PER_FILE]
        header = {
            name: {"dtype": stored, "shape": shapes[name], "data_offsets": [at * size, (at + 1) * size]}
            for at, name in enumerate(part)
        }
        text = json.dumps(header).encode()
        path = folder / f"model_{len(files):04d}.safetensors"
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            left = size * len(part)
            while left:
                left -= file.write(block[:left])
        places |= {name: {"file": len(files), "key": name} for name in part}
        files.append(path)
    model = folder / "model.onnx"
    model.write_bytes(_model(shapes, [path.name for path in files], places, _ELEM_TYPES[declared]))
    return model, files


def _model(
    shapes: dict[str, tuple[int, int]], files: list[str], places: dict[str, Any], elem_type: int
) -> bytes:
    from onnx import helper

    nodes, x = [], "x"
    for number, name in enumerate(shapes):
        transposed, y = f"w{number}", f"y{number}"
        nodes += [
            helper.make_node("Transpose", [name], [transposed], perm=[1, 0]),
            helper.make_node("MatMul", [x, transposed], [y]),
        ]
        x = y
    inputs = {"x": (1, _HIDDEN), **shapes}
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info(name, elem_type, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(x, elem_type, [1, _HIDDEN])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    document = {
        "version": 5,
        "model_name": "layers",
        "model_id": "",
        "files": [{"path": path, "format": "safetensors"} for path in files],
        "inputs": [{"name": name, "location": location} for name, location in places.items()],
    }
    model.metadata_props.add(key="com.qti.aisw.extdata", value=json.dumps(document))
    content: bytes = model.SerializeToString()
    return content


def compile_checkpoint(path: str, **options: object) -> dict[str, float]:
    """Compile a model (in a worker); imports are excluded."""
    import qaic

    started = time.perf_counter()
    qaic.Session(path, **options)
    result = {"seconds": time.perf_counter() - started, "peak": float(status_bytes("VmHWM"))}
    started = time.perf_counter()
    qaic.Session(path, **options)
    return result | {"again": time.perf_counter() - started}


def watched(script: Path, path: Path, cache: Path, options: dict[str, object]) -> dict[str, float]:
    """Compile in a fresh process, and sample from outside how much of its memory is no page of a file.

    Returns
    -------
    dict
        What `compile_checkpoint` gives, and ``anonymous``: the highest ``RssAnon`` seen, in bytes.
    """
    arguments = json.dumps({"path": str(path), **options})
    process = subprocess.Popen(
        [sys.executable, str(script), "--measure", arguments],
        env={**os.environ, "QAIC_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
    )
    highest = 0
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        for line in status.read_text().splitlines():
            if line.startswith("RssAnon:"):
                highest = max(highest, int(line.split()[1]) * 1024)
        time.sleep(_SAMPLE_SECONDS)
    output, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return json.loads(output.splitlines()[-1]) | {"anonymous": float(highest)}


def copied(files: list[Path], folder: Path) -> float:
    """Time of copying files, without removing them; seconds."""
    started = time.perf_counter()
    for file in files:
        shutil.copyfile(file, folder / file.name)
    return time.perf_counter() - started
