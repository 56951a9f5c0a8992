"""Containers and files for the tests of ``qaic-runner``."""

import json
from pathlib import Path

import numpy as np
from onnx import helper

from qaic.cli.runner import main
from qaic.compiler.driver import compile_model
from qaic.options import resolve
from session_models import model, save


def compiled(folder: Path, built, **options) -> Path:
    """Folder with the container of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    resolved = resolve(options, options_path=None, model_is_container=False)
    path = save(folder, built)
    return compile_model(path, resolved.compile, resolved.set_compile, output_dir=folder / "qpc").parent


def doubling(shape=(1, 8), dtype="float32"):
    """``y = x + x``, exact in every type."""
    return model([helper.make_node("Add", ["x", "x"], ["y"])], [("x", dtype, shape)], [("y", dtype, shape)])


def two_inputs():
    """``sum = a + b`` and ``difference/out = a - b``."""
    return model(
        [
            helper.make_node("Add", ["a", "b"], ["sum"]),
            helper.make_node("Sub", ["a", "b"], ["difference/out"]),
        ],
        [("a", "float32", [2, 3]), ("b", "float32", [2, 3])],
        [("sum", "float32", [2, 3]), ("difference/out", "float32", [2, 3])],
    )


def raw(folder: Path, name: str, array) -> Path:
    """File with the bytes of an array."""
    path = folder / name
    np.asarray(array).tofile(path)
    return path


def batch_json(folder: Path, sets, name="batch.json") -> Path:
    """Batch file."""
    path = folder / name
    path.write_text(json.dumps({"IO-files": sets}))
    return path


def entry(path, direction, name, size, dims=None, **more):
    """Entry of a batch file."""
    made = {"path": str(path), "io-direction": direction, "elem-size": size, "map-to": name, **more}
    return made if dims is None else {**made, "dims": dims}


def run(*arguments):
    """Exit code of the tool."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as error:
        return error.code
