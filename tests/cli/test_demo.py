"""``openqaic info`` and ``openqaic demo``."""

import json
import os
import re

import pytest

import qaic
from qaic.cli import console, demo, openqaic
from qaic.cli.demo import FileTypeModel
from qaic.errors import StateError

SOURCE = (
    b"import os\n\n\ndef main():\n    print(os.getcwd())\n\n\nif __name__ == '__main__':\n    main()\n" * 8
)


def run(*argv):
    return console.run(openqaic.tool, list(argv))


def test_info_names_versions_engine_and_devices(capsys):
    assert run("info", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["openqaic"] == qaic.__version__
    assert facts["engine"]["version"] == facts["packages"]["onnxruntime"]
    assert [device["nsp_total"] for device in facts["devices"]] == [16]
    assert run("info") == 0
    assert f"engine       onnxruntime {facts['engine']['version']}" in capsys.readouterr().out


@pytest.mark.slow
def test_demo_classifies_and_agrees(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "LATENCY_RUNS", 5)
    monkeypatch.setattr(demo, "THROUGHPUT_ROUNDS", 1)
    (tmp_path / "program.py").write_bytes(SOURCE)
    (tmp_path / "short").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    assert run("demo", str(tmp_path)) == 0
    printed = capsys.readouterr()
    assert re.search(r"program\.py +python +\d+\.\d", printed.out)
    assert "answers agree on 1 inputs" in printed.out
    assert "1 too short to classify" in printed.err


@pytest.mark.parametrize("name", ["missing", "pipe"])
def test_demo_refuses_what_is_no_file(tmp_path, name, capsys):
    os.mkfifo(tmp_path / "pipe")
    assert run("demo", str(tmp_path / name)) == 1
    assert name in capsys.readouterr().err


def test_demo_without_its_model_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(StateError, match="pip install --no-deps magika"):
        FileTypeModel.installed()


def test_features_are_those_of_the_model_card(tmp_path):
    model = FileTypeModel.installed()
    path = tmp_path / "file"
    path.write_bytes(b"  \n" + bytes(range(65, 91)) + b"\t ")
    tokens = model.features(path)
    assert tokens.shape == (1, 2048)
    # The first part of the file has no leading white space and keeps trailing white space; for the last part,
    # the reverse is true.
    assert tokens[0, :28].tolist() == [*range(65, 91), 9, 32]
    assert set(tokens[0, 28:1024]) == {256}
    assert tokens[0, -29:].tolist() == [32, 32, 10, *range(65, 91)]
