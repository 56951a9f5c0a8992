# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.13", "onnxscript==0.6.2", "onnx>=1.20", "numpy"]
# ///
"""Write `tests/data/dynamo`: tiny networks, exported with torch's dynamo exporter, and torch's outputs.

The files are committed, so torch is needed only to write them again, in an environment with the packages
above (newer versions of onnxscript expand every function, as `Recipe.inlined` does here):

    python tools/export_dynamo_models.py [NAME ...]

Each network becomes ``NAME.onnx`` (with ``NAME.onnx.data`` for external weights) and ``NAME.npz``, whose
arrays have the names ``CASE/inputs/TENSOR`` and ``CASE/outputs/TENSOR``; bfloat16 is stored as float32.
``exports.json`` lists the networks with the sizes of their symbols in each case.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir
import onnx_ir.passes.common
import torch

from dynamo_models import attention, decoder, networks, quantized

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynamo_models.recipe import Case, Recipe

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "data" / "dynamo"

#: Maximum bytes of a model with its weights.
LARGEST_BYTES = 100_000


def main(argv: list[str] | None = None) -> int:
    """Export the named networks, by default all."""
    parser = argparse.ArgumentParser(description="Export the networks of tests/data/dynamo.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="networks to export; default: all")
    names = parser.parse_args(argv).names
    recipes = [r for part in (networks, attention, decoder, quantized) for r in part.recipes()]
    unknown = set(names) - {recipe.name for recipe in recipes}
    if unknown:
        parser.error(f"no network is called {', '.join(sorted(unknown))}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for recipe in recipes:
        if not names or recipe.name in names:
            size = write(recipe)
            print(f"{recipe.name}: {size} bytes")
    index = FOLDER / "exports.json"
    index.write_text(json.dumps({r.name: describe(r) for r in recipes}, indent=1) + "\n")
    return 0


def describe(recipe: Recipe) -> dict[str, object]:
    """Return the facts about an export that tests need."""
    return {
        "opset": recipe.opset,
        "functions": [kind.__name__ for kind in recipe.layers],
        "cases": {case.name: dict(case.symbols) for case in recipe.cases},
    }


def write(recipe: Recipe) -> int:
    """Export one network and compute its cases; returns the size of the export in bytes."""
    arrays: dict[str, np.ndarray] = {}
    for case in recipe.cases:
        for name, tensor in case.inputs.items():
            arrays[f"{case.name}/inputs/{name}"] = to_array(tensor)
        for name, tensor in zip(recipe.output_names, compute(recipe, case), strict=True):
            arrays[f"{case.name}/outputs/{name}"] = to_array(tensor)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        path = Path(folder) / f"{recipe.name}.onnx"
        export(recipe, path)
        np.savez_compressed(path.with_suffix(".npz"), **arrays)
        size = sum(file.stat().st_size for file in path.parent.glob("*.onnx*"))
        if size > LARGEST_BYTES:
            sys.exit(f"{recipe.name}: {size} bytes, more than {LARGEST_BYTES}; make the network smaller")
        for file in path.parent.iterdir():
            file.replace(FOLDER / file.name)
    return size


def compute(recipe: Recipe, case: Case) -> list[torch.Tensor]:
    """Compute the outputs of a case in torch, flat and in the order of the ONNX outputs."""
    with torch.no_grad():
        copies = {name: tensor.clone() for name, tensor in case.inputs.items()}
        return torch.utils._pytree.tree_leaves(recipe.network(**recipe.pack(copies)))


def export(recipe: Recipe, path: Path) -> None:
    """Export one network."""
    example = recipe.traced or recipe.cases[0].inputs
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if recipe.layers:
            stack.enter_context(as_functions(recipe))
        program = torch.onnx.export(
            recipe.network,
            (),
            kwargs=recipe.pack(dict(example)),
            dynamo=True,
            dynamic_shapes=recipe.dynamic_shapes,
            input_names=recipe.input_names,
            output_names=recipe.output_names,
            opset_version=recipe.opset,
            custom_translation_table=dict(recipe.translations) or None,
            optimize=recipe.optimize,
            verbose=False,
        )
    assert program is not None
    if recipe.inlined:
        onnx_ir.passes.common.InlinePass()(program.model)
        onnx_ir.passes.common.RemoveUnusedFunctionsPass()(program.model)
        onnx_ir.passes.common.RemoveUnusedOpsetsPass()(program.model)
    program.save(path, external_data=recipe.external_data)
    model = onnx.load(path, load_external_data=False)
    settle(model, keep_traces=recipe.traces)
    path.write_bytes(model.SerializeToString(deterministic=True))


@contextlib.contextmanager
def as_functions(recipe: Recipe) -> Iterator[None]:
    """Convert the layers to ONNX functions while the context is active."""
    layers = [module for module in recipe.network.modules() if isinstance(module, tuple(recipe.layers))]
    for layer in layers:
        layer.forward = torch.compiler.nested_compile_region(type(layer).forward).__get__(layer)
    os.environ["TORCH_INVOKE_ALLOW_CREATE_FALLBACK"] = "1"
    try:
        with torch._dynamo.config.patch(inline_single_use_invoke_subgraph=False):
            yield
    finally:
        del os.environ["TORCH_INVOKE_ALLOW_CREATE_FALLBACK"]
        for layer in layers:
            del layer.forward


def settle(model: onnx.ModelProto, *, keep_traces: bool) -> None:
    """Write the same file for the same network on every machine.

    Attributes are sorted. Stack traces keep only files of this repository, with relative paths.
    """
    graphs: list[onnx.GraphProto | onnx.FunctionProto] = [model.graph, *model.functions]
    while graphs:
        for node in graphs.pop().node:
            ordered = sorted(node.attribute, key=lambda attribute: attribute.name)
            copies = [onnx.AttributeProto.FromString(entry.SerializeToString()) for entry in ordered]
            del node.attribute[:]
            node.attribute.extend(copies)
            if not keep_traces:
                node.ClearField("metadata_props")
            for entry in node.metadata_props:
                if entry.key == "pkg.torch.onnx.stack_trace":
                    frames = entry.value.split("  File ")
                    own = [frame for frame in frames if f'"{ROOT}/' in frame]
                    entry.value = "".join(own[-1:]).replace(f"{ROOT}/", "").strip()
            graphs += [attribute.g for attribute in node.attribute if attribute.HasField("g")]


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """Copy a tensor; bfloat16, which numpy does not have, becomes float32."""
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return tensor.detach().numpy().copy()


if __name__ == "__main__":
    sys.exit(main())
