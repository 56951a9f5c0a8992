"""What the README says can be typed as it stands."""

import re
import runpy
import sys
from pathlib import Path

import onnx
import pytest
from onnx import helper

import decoder_model
import session_models

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def run_example(name, *arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the model the README speaks of."""
    monkeypatch.chdir(tmp_path)
    run_example("make_model.py", "model.onnx", monkeypatch=monkeypatch)
    return tmp_path


def test_code_of_the_readme_runs(folder, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    namespace = {}
    for block in blocks:
        exec(block, namespace)
    printed = capsys.readouterr().out
    assert "{'x': ((1, 16), dtype('float32'))}" in printed
    assert "Number of inferences utilized for calculation are 99" in printed
    assert (folder / "build" / "programqpc.bin").is_file()


def test_code_of_the_guide_runs(folder):
    onnx.save(decoder_model.decoder(), "decoder.onnx")
    tokens = session_models.model(
        [helper.make_node("Neg", ["ids"], ["y"])],
        [("ids", "int32", ["batch", "seq"])],
        [("y", "int32", ["batch", "seq"])],
    )
    onnx.save(tokens, "tokens.onnx")
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "guide" / "running.md").read_text(), re.DOTALL
    )
    assert len(blocks) == 5
    namespace = {}
    for block in blocks:
        exec(block, namespace)
    assert namespace["logits"].shape == (1, 1, 23)
    assert len(namespace["results"]) == 100


def test_examples_run(folder, monkeypatch, capsys):
    run_example("run_onnx.py", "model.onnx", monkeypatch=monkeypatch)
    assert "y: float32 (1, 16), largest difference in fp16 0.00" in capsys.readouterr().out
    import qaic

    qaic.Session("model.onnx", output_dir="build")
    run_example("inspect_qpc.py", "build", monkeypatch=monkeypatch)
    assert "built for cpu, 1 cores" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing
