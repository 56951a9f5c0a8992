"""``openqaic shims``: tools at the vendor's paths; installing changes no other file, and removing removes
all.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from qaic.cli import console, openqaic, shims

PLACES = ["exec/qaic-compile", "exec/qaic-exec", "exec/qaic-runner", "tools/qaic-util", "tools/qaic-qpc"]


def run(*argv):
    return console.run(openqaic.tool, ["shims", *argv])


@pytest.fixture
def prefix(tmp_path):
    return tmp_path / "opt" / "qti-aic"


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_installed_tools_run_from_anywhere(prefix, tmp_path, capsys):
    assert run("install", "--prefix", str(prefix)) == 0
    printed = capsys.readouterr()
    assert all(f"installed {prefix / place}" in printed.out for place in PLACES)
    # Python must not import a folder with the package's name in the working directory as the package.
    (tmp_path / "qaic").mkdir()
    (tmp_path / "qaic" / "__init__.py").write_text("raise SystemExit(99)")
    for place in PLACES:
        result = subprocess.run(
            [prefix / place, "--help"], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        assert result.stdout.startswith(f"usage: {Path(place).name} ")


@pytest.mark.parametrize("place", shims._TOOLS)
def test_shims_of_earlier_versions_run(place):
    command = [sys.executable, "-P", "-m", shims._TOOLS[place], "--help"]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert result.stdout.startswith(f"usage: {Path(place).name} ")


def test_tools_of_later_versions_are_left_out_and_named(prefix, capsys):
    missing = [
        place for place, module in shims._TOOLS.items() if shims.importlib.util.find_spec(module) is None
    ]
    assert run("install", "--prefix", str(prefix)) == 0
    printed = capsys.readouterr()
    for place in missing:
        assert not (prefix / place).exists()
        assert f"{Path(place).name} is not in this version" in printed.err


def test_arguments_reach_the_tool_unchanged(prefix):
    assert run("install", "--prefix", str(prefix)) == 0
    odd = "no such * $HOME 'file'"
    result = subprocess.run(
        [prefix / "tools/qaic-qpc", "info", odd], check=False, capture_output=True, text=True
    )
    assert result.returncode == 1
    assert odd in result.stderr


def test_remove_takes_away_exactly_what_was_laid(prefix, tmp_path, capsys):
    assert run("install", "--prefix", str(prefix)) == 0
    assert run("remove", "--prefix", str(prefix)) == 0
    assert list(tmp_path.iterdir()) == []
    assert f"removed {prefix / 'tools/qaic-util'}" in capsys.readouterr().out


def test_remove_keeps_folders_and_files_of_others(prefix, tmp_path):
    (prefix / "exec").mkdir(parents=True)
    assert run("install", "--prefix", str(prefix)) == 0
    (prefix / "tools" / "mine").write_text("mine")
    assert run("remove", "--prefix", str(prefix)) == 0
    assert tree(tmp_path) == {"opt/qti-aic/tools/mine": b"mine"}
    assert (prefix / "exec").is_dir()


def test_installing_twice_is_installing_once(prefix, tmp_path):
    assert run("install", "--prefix", str(prefix)) == 0
    first = tree(tmp_path)
    assert run("install", "--prefix", str(prefix)) == 0
    assert tree(tmp_path) == first
    assert run("remove", "--prefix", str(prefix)) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_refuses_to_replace_what_is_foreign(prefix, tmp_path, kind, capsys):
    foreign = [prefix / "tools" / "qaic-util", prefix / "exec" / "qaic-runner"]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "file":
            path.write_text("#!/bin/sh\nthe vendor's\n")
        elif kind == "link":
            path.symlink_to(tmp_path / "nowhere")
        else:
            path.mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert run("install", "--prefix", str(prefix)) == 1
    assert sorted(tmp_path.rglob("*")) == before
    message = capsys.readouterr().err
    assert all(f"{path} exists and is not a shim" in message for path in foreign)
    assert run("remove", "--prefix", str(prefix)) == 0
    assert sorted(tmp_path.rglob("*")) == before


def fail_at_the_third_file(monkeypatch):
    laid = []

    def write_or_fail(path, write):
        laid.append(path)
        if len(laid) == 3:
            raise OSError(28, "No space left on device", str(path))
        original(path, write)

    original = shims.write_replacing
    monkeypatch.setattr(shims, "write_replacing", write_or_fail)


def test_nothing_stays_of_a_failed_installation(prefix, tmp_path, monkeypatch, capsys):
    fail_at_the_third_file(monkeypatch)
    assert run("install", "--prefix", str(prefix)) == 1
    assert list(tmp_path.iterdir()) == []
    assert "No space left on device" in capsys.readouterr().err


def test_a_failed_second_installation_keeps_the_first(prefix, tmp_path, monkeypatch):
    assert run("install", "--prefix", str(prefix)) == 0
    before = tree(tmp_path)
    fail_at_the_third_file(monkeypatch)
    assert run("install", "--prefix", str(prefix)) == 1
    assert tree(tmp_path) == before


def test_permission_errors_are_explained(prefix, monkeypatch, capsys):
    def denied(_folder):
        raise PermissionError(13, "Permission denied", "/opt/qti-aic")

    monkeypatch.setattr(shims.Path, "mkdir", denied)
    assert run("install", "--prefix", str(prefix)) == 1
    command = f"sudo {sys.executable} -m qaic shims install --prefix {prefix}"
    assert capsys.readouterr().err.splitlines() == [
        "error: /opt/qti-aic: Permission denied",
        f"hint: {command}, or another root with --prefix DIR",
    ]


@pytest.mark.parametrize("record", ["", "[]", '{"folders": 1}', '{"folders": [1, null]}', "[" * 100_000])
def test_a_damaged_record_costs_folders_only(prefix, record):
    assert run("install", "--prefix", str(prefix)) == 0
    (prefix / ".openqaic-shims.json").write_text(record)
    assert run("remove", "--prefix", str(prefix)) == 0
    assert tree(prefix) == {}
    assert (prefix / "tools").is_dir()


def test_a_record_cannot_name_other_folders(prefix, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    assert run("install", "--prefix", str(prefix)) == 0
    (prefix / ".openqaic-shims.json").write_text(json.dumps({"folders": [str(tmp_path / "elsewhere")]}))
    assert run("remove", "--prefix", str(prefix)) == 0
    assert (tmp_path / "elsewhere").is_dir()


def test_nothing_to_remove_is_said(prefix, capsys):
    assert run("remove", "--prefix", str(prefix)) == 0
    assert capsys.readouterr().out == f"found no shim under {prefix}\n"
    assert not prefix.exists()
