"""Every command in the README and the guides runs, with the files that the page mentions."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import decoder_model
import qaic
import session_models
import weight_free_models
from guide_blocks import ROOT, SHELL, blocks, blocks_to_run

PAGES = sorted({block.page for block in blocks() if block.language in SHELL and not block.mark})
SHAPES = json.dumps(decoder_model.specializations(context=128))


@cache
def model_of_one_input():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        subprocess.run([sys.executable, str(ROOT / "examples" / "make_model.py"), path], check=True)
        return path.read_bytes()


def write_model(folder):
    """The model with one input that most pages use, and lists of samples for it."""
    (folder / "model.onnx").write_bytes(model_of_one_input())
    generator = np.random.default_rng(0)
    for number in range(32):
        generator.normal(size=(1, 16)).astype(np.float32).tofile(folder / f"sample{number}.raw")
    listed = "".join(f"sample{number}.raw\n" for number in range(32))
    (folder / "inputs.txt").write_text(listed)
    (folder / "samples.txt").write_text(listed)


def write_accuracy(folder):
    write_model(folder)
    onnx.save(decoder_model.decoder(decoder_model.Sizes(layers=1, context=128)), folder / "decoder.onnx")
    (folder / "specializations.json").write_text(SHAPES)
    np.savez(folder / "prompts.npz", input_ids=np.array([[3, 1, 4, 1, 5]]))
    qaic.compile(folder / "model.onnx", output_dir=folder / "qpc", convert_to_fp16=True)
    entries = [
        [
            {
                "path": f"sample{number}.raw",
                "io-direction": "in",
                "elem-size": 4,
                "map-to": "x",
                "dims": [1, 16],
            }
        ]
        for number in range(32)
    ]
    (folder / "io.json").write_text(json.dumps({"IO-files": entries}))


def write_calibration(folder):
    """A model with two inputs, and the list that the page prints with `cat`."""
    built = session_models.model(
        [helper.make_node("MatMul", ["image", "w"], ["h"]), helper.make_node("Mul", ["h", "mask"], ["y"])],
        [("image", "float32", [1, 8]), ("mask", "float32", [1, 8])],
        [("y", "float32", [1, 8])],
        {"w": np.eye(8, dtype=np.float32)},
    )
    onnx.save(built, folder / "model.onnx")
    (block,) = [one for one in blocks() if one.page.endswith("calibration.md") and "cat list.txt" in one.code]
    lines = [line for line in block.code.splitlines() if not line.startswith("$")]
    (folder / "list.txt").write_text("\n".join(lines))
    for name in ("img0.raw", "mask0.raw", "mask1.raw", "img2.raw", "mask2.raw"):
        np.linspace(-1, 1, 8, dtype=np.float32).tofile(folder / name)
    np.save(folder / "img1.npy", np.linspace(-1, 1, 8, dtype=np.float32)[None])


def write_compiling(folder):
    write_model(folder)
    (folder / "export").mkdir()
    shutil.copy(weight_free_models.export(folder / "data"), folder / "export" / "Llama.onnx")


def write_containers(folder):
    write_model(folder)
    for name, options in (("program", {}), ("old", {}), ("new", {"convert_to_fp16": True})):
        qaic.compile(folder / "model.onnx", output_dir=folder / name, **options)


def write_quantization(folder):
    write_model(folder)
    qaic.compile(
        folder / "model.onnx",
        dump_profile=str(folder / "model.yaml"),
        input_list_file=str(folder / "inputs.txt"),
    )


def write_tools(folder):
    """A model of tokens with the inputs and the output of the page's batch file, a decoder, and a bundle."""
    built = session_models.model(
        [
            helper.make_node("Mul", ["input_ids", "mask"], ["ids"]),
            helper.make_node("Cast", ["ids"], ["floats"], to=1),
            helper.make_node("Unsqueeze", ["floats", "last"], ["column"]),
            helper.make_node("Mul", ["column", "row"], ["logits"]),
        ],
        [("input_ids", "int64", [1, 8]), ("mask", "int64", [1, 8])],
        [("logits", "float32", [1, 8, 32000])],
        {"last": np.array([-1]), "row": np.ones(32000, np.float32)},
    )
    onnx.save(built, folder / "model.onnx")
    np.arange(8).tofile(folder / "ids.raw")
    np.ones(8, np.int64).tofile(folder / "mask.raw")
    np.repeat(np.arange(8, dtype=np.float32), 32000).tofile(folder / "logits.raw")
    _, block = blocks_to_run("docs/guide/tools.md", ("json",))
    batch = json.loads(block.code)
    mask = {"path": "mask.raw", "io-direction": "in", "elem-size": 8, "map-to": "mask", "dims": [1, 8]}
    batch["IO-files"][0].append(mask)
    (folder / "io.json").write_text(json.dumps(batch))
    onnx.save(decoder_model.decoder(), folder / "decoder.onnx")
    (folder / "shapes.json").write_text(SHAPES)
    bundle = folder / "export" / "qpc-0f1e2d3c"
    (bundle / "io").mkdir(parents=True)
    script = bundle / "qaic-compile.sh"
    script.write_text(
        '#!/bin/sh\ncd "$(dirname "$0")"\nqaic-compile -m=../../model.onnx -aic-binary-dir=qpc\n'
    )
    script.chmod(0o755)
    for name in ("ids.raw", "mask.raw"):
        shutil.copy(folder / name, bundle / "io")
    (bundle / "io" / "aic_batch_io.json").write_text(json.dumps(batch))


WRITES = {
    "docs/guide/accuracy.md": write_accuracy,
    "docs/guide/calibration.md": write_calibration,
    "docs/guide/card.md": write_model,
    "docs/guide/compiling.md": write_compiling,
    "docs/guide/containers.md": write_containers,
    "docs/guide/quantization.md": write_quantization,
    "docs/guide/shapes-and-state.md": write_accuracy,
    "docs/guide/tools.md": write_tools,
}
#: Number of inferences in a measurement, instead of the default duration.
FEW = "openqaic bench -n 2 --warm-up 0"
# The page about several devices has four virtual devices.
SETTINGS = {"docs/guide/tools.md": {"QAIC_CPU_DEVICES": "4"}}


def commands(block):
    """The commands of a block, each with its continuation lines."""
    lines = block.code.splitlines()
    if block.language == "console":
        kept, goes_on = [], False
        for line in lines:
            if line.startswith("$ ") or goes_on:
                kept.append(line.removeprefix("$ "))
                goes_on = line.endswith("\\")
        lines = kept
    return "\n".join(lines).replace("\\\n", "").splitlines()


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_run(page, warm_commands, tmp_path, monkeypatch):
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    WRITES.get(page, write_model)(folder)
    script = ["set -eu"]
    for block in blocks_to_run(page, SHELL):
        for command in commands(block):
            # Paths of a client's machine are redirected to the folder. A reported difference is not a
            # failure.
            said = command.replace("/data/", f"{folder}/data/").replace("openqaic bench", FEW)
            script.append(f"{{ {said}\n}} || [ $? = 1 ]" if " diff " in command else said)
    assert len(script) > 1
    environment = {
        **{name: text for name, text in os.environ.items() if name not in ("QAIC_DEVICE", "QAIC_KMD")},
        "PATH": f"{warm_commands}:{os.environ['PATH']}",
        **SETTINGS.get(page, {}),
    }
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
