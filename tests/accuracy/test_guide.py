"""The code of the guide to accuracy runs."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx

import decoder_model
from guide_blocks import ROOT, python_of


def test_code_of_the_guide_to_accuracy_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, str(ROOT / "examples" / "make_model.py"), "model.onnx"], check=True)
    onnx.save(decoder_model.decoder(decoder_model.Sizes(layers=1, context=128)), "decoder.onnx")
    Path("specializations.json").write_text(json.dumps(decoder_model.specializations(context=128)))
    generator = np.random.default_rng(0)
    namespace = {
        "samples": [{"x": generator.normal(size=(1, 16)).astype(np.float32)} for _ in range(8)],
        "ids": np.array([3, 1, 4]),
    }
    compare, search, decoding = python_of("docs/guide/accuracy.md")
    exec(compare, namespace)
    assert namespace["report"]["fp16"].samples == 8
    assert (tmp_path / "page.html").is_file()
    exec(search, namespace)
    assert (tmp_path / "node_precision.yaml").is_file()
    exec(decoding, namespace)
    assert len(namespace["report"]["fp16"].decoding.steps) == 64
