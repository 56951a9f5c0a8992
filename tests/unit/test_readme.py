"""Commands and code of the README work as printed."""

import ast
import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from onnx import helper

import child_process
import decoder_model
import session_models
from guide_blocks import SHELL, blocks, python_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Languages of blocks that are not code; `text` is the output of a command on the page.
READ_AS = {"python": None, "json": json.loads, "yaml": yaml.safe_load, "text": str.strip}


def run_example(name, *arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the model that the README mentions."""
    monkeypatch.chdir(tmp_path)
    run_example("make_model.py", "model.onnx", monkeypatch=monkeypatch)
    return tmp_path


def test_code_of_the_readme_runs(folder, capsys):
    blocks = python_of("README.md")
    assert len(blocks) == 1
    exec(blocks[0], {})
    printed = capsys.readouterr().out
    assert "{'x': ShapeAndType(shape=(1, 16), dtype=dtype('float32'))}" in printed
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
    blocks = python_of("docs/guide/running.md")
    assert len(blocks) == 6
    namespace = {}
    for block in blocks:
        exec(block, namespace)
    assert len({outputs["y"].tobytes() for outputs in namespace["same"]}) == 1
    assert namespace["logits"].shape == (1, 1, 23)
    assert len(namespace["results"]) == 100


def test_code_of_the_guide_to_cards_runs():
    # Runs in a separate process, because it selects the devices.
    (block,) = python_of("docs/guide/card.md")
    done = child_process.run_script(
        block + "\nassert card.ledger()['free']['cores'] == 16\nprint(card.calls('execute'))"
    )
    assert done.stdout == "0\n"


def test_code_of_the_guide_to_configurations_runs(folder):
    blocks = python_of("docs/guide/configs.md")
    assert len(blocks) == 6
    namespace = {}
    for block in blocks:
        exec(block, namespace)
    assert (folder / "net_backend.bin").is_file()
    assert "qairt" not in sys.modules


@pytest.mark.parametrize("page", ["docs/guide/calibration.md", "docs/guide/quantization.md"])
def test_code_of_the_guides_to_integers_runs(folder, page):
    (block,) = python_of(page)
    namespace = {}
    exec(block, namespace)
    inputs = {"x": np.full((1, 16), 0.5, np.float32)}
    y = namespace["session"].run(inputs)["y"]
    exact = namespace["qaic"].Session("model.onnx").run(inputs)["y"]
    assert 0 < np.abs(y - exact).max() < 0.1 * np.abs(exact).max()


def test_code_of_the_guide_to_containers_runs(folder):
    (block,) = python_of("docs/guide/containers.md")
    namespace = {}
    exec(block, namespace)
    assert namespace["weights"].shape == (16, 16)
    assert not namespace["findings"]
    assert list((folder / "descriptors").rglob("networkdesc.json"))


def test_code_of_the_guide_to_edges_moves_the_state(folder, monkeypatch):
    run_example("make_model.py", "--decoder", "decoder.onnx", monkeypatch=monkeypatch)
    (block,) = python_of("docs/guide/edges.md")
    namespace = {}
    exec(block, namespace)
    assert namespace["cache"][:8].any(axis=1).all()
    after = namespace["decode"].read_state("past_key.0", sequence=0)
    np.testing.assert_array_equal(after[:8], namespace["cache"][:8])
    assert after[8].any()


def test_code_of_the_guide_to_shapes_runs(folder):
    encoder = session_models.model(
        [helper.make_node("Neg", ["input_ids"], ["y"])],
        [("input_ids", "int32", ["batch", "seq"])],
        [("y", "int32", ["batch", "seq"])],
    )
    onnx.save(encoder, "encoder.onnx")
    decoder = session_models.model(
        [helper.make_node("Neg", ["x"], ["logits"])],
        [("x", "float32", ["batch", 171, 50])],
        [("logits", "float32", ["batch", 171, 50])],
    )
    onnx.save(decoder, "model.onnx")
    sized, shaped = python_of("docs/guide/shapes-and-state.md")
    namespace = {}
    exec(sized, namespace)
    exec(shaped, namespace)
    for size in (1, 7, 512):
        assert namespace["session"].run({"input_ids": np.ones((1, size), np.int32)})["y"].shape == (1, size)


def test_code_of_the_guide_to_profiling_runs(folder, capsys):
    blocks = python_of("docs/guide/profiling.md") + python_of("docs/reference/statistics.md")
    namespace = {}
    for block in blocks:
        exec(block, namespace)
    assert "Latency of 49 runs" in capsys.readouterr().out
    assert (folder / "latency.html").read_text().count("<svg") == 3
    assert len(namespace["profile"]) == 10
    assert (folder / "trace.json").is_file()
    assert 'id="timeline"' in (folder / "profile.html").read_text()
    assert len(list((folder / "profile").glob("*-aiccyclecounts.bin"))) == 10
    # The callback of the stream keeps the names, and the names keep the stream.
    namespace.clear()


def test_code_of_the_first_page_runs(folder):
    (block,) = python_of("docs/index.md")
    x = np.full((1, 16), 0.5, np.float32)
    namespace = {"x": x}
    exec(block, namespace)
    exact = session_models.engine(onnx.load("model.onnx")).run(None, {"x": x})[0]
    np.testing.assert_allclose(namespace["outputs"]["y"], exact, rtol=1e-2, atol=1e-2)


def pages_run(function):
    """Pages whose code a test runs: those that it names in calls of `python_of`."""
    nodes = list(ast.walk(function))
    if not any(isinstance(node, ast.Name) and node.id == "python_of" for node in nodes):
        return set()
    return {
        node.value for node in nodes if isinstance(node, ast.Constant) and str(node.value).endswith(".md")
    }


def test_every_block_of_the_pages_is_run_or_says_why_not():
    pages = set()
    for path in Path(__file__).parents[1].rglob("test_*.py"):
        if "python_of" in (text := path.read_text()):
            for function in ast.parse(text).body:
                if isinstance(function, ast.FunctionDef) and function.name.startswith("test_"):
                    pages |= pages_run(function)
    assert len(blocks()) > 80
    for block in blocks():
        if block.mark is not None:
            assert block.reason_not_to_run or block.run_by, f"{block}: {block.mark!r} says neither"
        if block.run_by:
            assert block.page.rpartition("/")[2] in (ROOT / block.run_by).read_text(), block
        if block.mark is not None or block.language in SHELL:
            continue  # tests/cli/test_guide_commands.py runs every shell block without a mark.
        assert block.language in READ_AS, f"{block}: no test reads {block.language!r}"
        if block.language == "python":
            assert block.page in pages, f"{block}: no test runs it, and no mark says why"
        else:
            assert READ_AS[block.language](block.code), block


def test_the_example_of_profiles_writes_a_trace(folder, monkeypatch, capsys):
    run_example("profile_trace.py", "model.onnx", "trace.json", monkeypatch=monkeypatch)
    printed = capsys.readouterr().out
    assert printed.startswith("20 inferences on 1 activation in ")
    assert printed.endswith("wrote trace.json\n")
    assert (folder / "trace.json").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_says_each_thing_once(page):
    titles = re.findall(r"^##+ .*", page.read_text(), re.MULTILINE)
    repeated = {title for title in titles if titles.count(title) > 1}
    assert not repeated or page.name == "CHANGELOG.md"


def test_code_of_the_guide_to_compiling_runs(folder):
    (block,) = python_of("docs/guide/compiling.md")
    namespace = {}
    exec(block, namespace)
    assert namespace["qpc"].options == {"aic_num_cores": 4, "convert_to_fp16": True}
    assert (folder / "model" / "qpc" / "programqpc.bin").is_file()


def test_commands_of_the_pages_name_flags_that_exist():
    from qaic.options.argv import read_argv
    from qaic.options.table import find

    commands = []
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        commands += re.findall(r"^(?:\$ )?qaic-compile (-[^#\n]*)", text, re.MULTILINE)
    assert len(commands) > 12
    for command in commands:
        for given in read_argv(command.split()):
            assert find(given.key), (command, given.key)


def test_links_inside_of_pages_lead_to_headings():
    def anchor(title):
        return re.sub(r"[^a-z0-9 _-]", "", title.lower().replace("`", "")).strip().replace(" ", "-")

    for page in PAGES:
        for link, part in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text()):
            target = page.parent / link if link else page
            titles = re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE)
            assert part in map(anchor, titles), (page.name, link, part)


def test_code_of_the_low_level_guide_runs(folder):
    blocks = python_of("docs/guide/low-level.md")
    assert len(blocks) == 6
    namespace = {}
    for block in blocks:
        # Each block contains its own assertions, which readers can see.
        assert "assert " in block
        exec(block, namespace)


def test_the_decoder_of_the_examples_writes_what_onnxruntime_does(folder, monkeypatch, capsys):
    run_example("make_model.py", "--decoder", "decoder.onnx", monkeypatch=monkeypatch)
    run_example("decoder/decode_loop.py", "decoder.onnx", "--tokens", "9", monkeypatch=monkeypatch)
    prompt, written = (
        [int(token) for token in line.split(":")[1].split()] for line in capsys.readouterr().out.splitlines()
    )
    engine = session_models.engine(onnx.load("decoder.onnx"))
    tokens, start, cache = np.array([prompt]), 0, np.zeros((1, 64, 16), np.float32)
    expected = []
    while len(expected) < 9:
        places = np.arange(start, start + tokens.shape[1])[None]
        feeds = {"input_ids": tokens, "position_ids": places, "past_key.0": cache}
        logits, cache = engine.run(None, feeds)
        expected.append(int(logits[0, -1].argmax()))
        tokens, start = np.array([expected[-1:]]), start + tokens.shape[1]
    assert len(set(expected)) > 3
    assert written == expected


def test_examples_run(folder, monkeypatch, capsys):
    run_example("run_onnx.py", "model.onnx", monkeypatch=monkeypatch)
    assert "y: float32 (1, 16), largest difference in fp16 0.00" in capsys.readouterr().out
    import qaic

    qaic.Session("model.onnx", output_dir="build")
    run_example("inspect_qpc.py", "build", monkeypatch=monkeypatch)
    assert "built for cpu, cores: 1" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing
