"""Bundles in the form that exporters write without a compiler: a script, its files, and the inputs of one
run.

A bundle is a folder with ``qaic-compile.sh`` and ``io/aic_batch_io.json``. The script changes to its own
folder and calls the tool by name with relative paths; the JSON file names raw files in ``io/data``. The test
runs the bundle unchanged.
"""

import json
import os
import shlex
import shutil
import stat
import subprocess

import numpy as np
import onnx
import pytest

import llm_exports
import weight_free_models
from decoder_model import Oracle, Sizes, decoder, specializations

CHUNK = 8
SIZES = Sizes()
FLAGS = ["-aic-hw", "-aic-hw-version=ai100"]


@pytest.fixture
def tools(warm_commands):
    """An environment whose PATH contains the tools."""
    return {**os.environ, "PATH": f"{warm_commands}:{os.environ['PATH']}"}


def write_bundle(folder, model, flags, inputs, outputs):
    """Write a bundle for a model in another folder; `outputs` maps a name to its bytes per element and its
    shape.
    """
    folder.mkdir(parents=True)
    command = ["qaic-compile", *FLAGS, f"-m={os.path.relpath(model, folder)}", *flags, "-aic-binary-dir=qpc"]
    script = folder / "qaic-compile.sh"
    script.write_text(f'#!/usr/bin/env bash\nset -eu\ncd "$(dirname "$0")"\n{shlex.join(command)}\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (folder / "hashed_compile_params.json").write_text(json.dumps({"command": command}))
    data = folder / "io" / "data"
    data.mkdir(parents=True)
    entries = []
    for name, array in inputs.items():
        array.tofile(data / f"{name}.raw")
        entries.append(described(name, "in", array.itemsize, array.shape))
    entries += [described(name, "out", size, shape) for name, (size, shape) in outputs.items()]
    (folder / "io" / "aic_batch_io.json").write_text(json.dumps({"IO-files": [entries]}))
    return folder


def described(name, direction, size, shape):
    return {
        "path": f"data/{name}.raw",
        "io-direction": direction,
        "elem-size": size,
        "map-to": name,
        "dims": list(shape),
    }


def replayed(bundle, tools, elsewhere):
    """Compile and run a bundle; returns the folder with the outputs."""
    for command in (
        [bundle / "qaic-compile.sh"],
        [
            *["qaic-runner", "-t", bundle / "qpc"],
            *["--aic-batch-json-input", bundle / "io" / "aic_batch_io.json"],
            *["--write-output-dir", elsewhere / "out"],
        ],
    ):
        done = subprocess.run(
            list(map(str, command)), cwd=elsewhere, env=tools, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return elsewhere / "out"


def output(folder, name, dtype=np.float32):
    return np.fromfile(folder / f"{name}-activation-0-inf-0.bin", dtype)


def custom_io(names, precision):
    """Set the precision of caches in the exporters' form, which differs from that of a YAML writer."""
    both = [name + suffix for name in names for suffix in ("", "_RetainedState")]
    return "".join(f" - IOName: {name}\n   Precision: {precision}\n\n" for name in both)


def decoder_bundle(folder, tokens):
    model = folder / "export" / "LlamaForCausalLM.onnx"
    model.parent.mkdir()
    onnx.save(decoder(SIZES), model)
    bundle = write_bundle(
        folder / "export" / "qpc-0f1e2d3c",
        model,
        [
            *["-retained-state", "-convert-to-fp16", "-aic-num-cores=16"],
            *["-network-specialization-config=specializations.json", "-custom-IO-list-file=custom_io.yaml"],
        ],
        {"input_ids": tokens, "position_ids": np.arange(CHUNK, dtype=np.int64)[None]},
        {"logits": (4, (1, 1, SIZES.vocabulary))},
    )
    (bundle / "specializations.json").write_text(
        json.dumps({"specializations": specializations(CHUNK, context=SIZES.context)}, indent=4)
    )
    (bundle / "custom_io.yaml").write_text(custom_io(SIZES.caches, "float16"))
    return bundle


def test_bundle_of_a_decoder_is_replayed_wherever_it_lies(tmp_path, tools):
    tokens = np.random.default_rng(3).integers(0, SIZES.vocabulary, (1, CHUNK))
    bundle = decoder_bundle(tmp_path, tokens)
    expected = Oracle(SIZES).step(tokens)
    moved = tmp_path / "another place"
    for place in ("first", "second"):
        elsewhere = tmp_path / place
        elsewhere.mkdir()
        before = {path.relative_to(bundle) for path in bundle.rglob("*")}
        found = output(replayed(bundle, tools, elsewhere), "logits")
        np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-2)
        new = {str(path.relative_to(bundle)) for path in bundle.rglob("*")} - set(map(str, before))
        assert new <= {"qpc", "qpc/programqpc.bin"}
        if not moved.exists():
            shutil.copytree(tmp_path / "export", moved)
            shutil.rmtree(tmp_path / "export")
            bundle = moved / bundle.name


def test_bundle_of_a_model_without_weights_is_replayed(tmp_path, tools):
    weights = weight_free_models.arrays()
    model = weight_free_models.export(tmp_path, weights)
    ids = np.arange(8, dtype=np.int64)[None]
    bundle = write_bundle(
        model.parent / "qpc-00aa",
        model,
        ["-aic-num-cores=2"],
        {"input_ids": ids},
        {"logits": (4, (1, 8, weight_free_models.VOCABULARY))},
    )
    found = output(replayed(bundle, tools, tmp_path), "logits")
    expected = weight_free_models.logits(weights, ids)
    np.testing.assert_allclose(found, expected.reshape(-1), rtol=1e-4, atol=1e-5)


def test_bundle_that_was_torn_from_its_model_leaves_nothing(tmp_path, tools):
    bundle = decoder_bundle(tmp_path, np.zeros((1, CHUNK), np.int64))
    (tmp_path / "export" / "LlamaForCausalLM.onnx").unlink()
    done = subprocess.run(
        [bundle / "qaic-compile.sh"], env=tools, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert "LlamaForCausalLM.onnx" in done.stderr
    assert not (bundle / "qpc").exists()


@pytest.mark.parametrize("name", ["llama-fp16", "gpt2-fp16"])
def test_bundle_of_a_real_export_gives_the_first_token_of_pytorch(tmp_path, tools, name):
    export = llm_exports.require(name)
    shutil.copytree(export.path / "model", tmp_path / "model")
    vocabulary = 512
    prompt, tokens = next((p, t) for p, t in export.greedy if len(p) <= CHUNK)
    ids, positions = np.zeros((1, CHUNK), np.int64), np.full((1, CHUNK), -1, np.int64)
    ids[0, : len(prompt)], positions[0, : len(prompt)] = prompt, np.arange(len(prompt))
    given = json.loads((export.path / "argv.json").read_text())
    flags = [flag for flag in given if flag.partition("=")[0] not in {"-m", "-aic-binary-dir", *FLAGS}]
    bundle = write_bundle(
        tmp_path / "qpc-77",
        tmp_path / "model" / export.model.name,
        [flag for flag in flags if flag not in FLAGS],
        {"input_ids": ids, "position_ids": positions},
        {"logits": (4, (1, 1, vocabulary))},
    )
    for file in ("specializations.json", "custom_io.yaml"):
        shutil.copy(export.path / file, bundle / file)
    assert output(replayed(bundle, tools, tmp_path), "logits").argmax() == tokens[0]
