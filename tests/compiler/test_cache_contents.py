"""The compile cache keeps whole programs and nothing else, within the size that it may have."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from onnx import helper

import qaic
from qaic.compiler import cache, cache_contents
from qaic.errors import OptionError
from session_models import model, save

#: says when the samples of a calibration are being run, which then takes as long as it is given
HOOK = """
import sys, threading
from qaic.compiler.calibration import collector
def run(self, path, workers):
    assert path.stat().st_size
    sys.stderr.write("working\\n"); sys.stderr.flush()
    threading.Event().wait(60)
collector._Run.run = run
"""


def scaled(factor=2.0, elements=4):
    constants = {"w": np.full(elements, factor, np.float32)}
    return model(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        [("x", "float32", [elements])],
        [("y", "float32", [elements])],
        constants,
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def unfinished(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.tmp"))


@pytest.fixture
def calibrating(tmp_path, folder):
    """A `qaic-compile` in the middle of a calibration."""
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    path = save(tmp_path, scaled())
    np.ones(4, np.float32).tofile(tmp_path / "x.raw")
    (tmp_path / "inputs.txt").write_text(f"{tmp_path / 'x.raw'}\n")
    child = subprocess.Popen(
        [sys.executable, "-m", "qaic.cli.compile", f"-m={path}", f"-aic-binary-dir={tmp_path / 'out'}",
         f"-input-list-file={tmp_path / 'inputs.txt'}", "-convert-to-quantize"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    assert child.stderr.readline() == "working\n"
    yield child
    child.kill()
    child.wait()
    child.stderr.close()


def test_a_terminated_calibration_leaves_nothing(calibrating, folder):
    assert len(unfinished(folder)) == 1
    calibrating.send_signal(signal.SIGTERM)
    assert calibrating.communicate(timeout=30)[1] == "error: terminated\n"
    assert calibrating.returncode == 143
    assert unfinished(folder) == []


def test_what_a_killed_calibration_leaves_goes_with_the_next_compilation(calibrating, folder, tmp_path):
    (left,) = unfinished(folder)
    qaic.compile(save(tmp_path, scaled(3.0)))
    # Its owner lives.
    assert unfinished(folder) == [left]
    calibrating.kill()
    calibrating.wait()
    assert unfinished(folder) == [left]
    qaic.compile(save(tmp_path, scaled(4.0)))
    assert unfinished(folder) == []


def test_what_a_killed_writer_leaves_goes_with_the_next_compilation(folder, tmp_path):
    program = qaic.compile(save(tmp_path, scaled())).path
    aside = program.with_name(".programqpc.bin.1.0.tmp")
    aside.write_bytes(b"half")
    with cache_contents.locked(program.with_name(cache_contents.LOCK_NAME)):
        qaic.compile(save(tmp_path, scaled(3.0)))
        assert aside.exists()
    qaic.compile(save(tmp_path, scaled(4.0)))
    assert not aside.exists()
    assert program.exists()


def aged(path, seconds):
    """Have a program last wanted so long ago."""
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns - seconds * 10**9, found.st_mtime_ns - seconds * 10**9))


def test_programs_that_were_not_wanted_for_the_longest_time_go_first(folder, tmp_path, monkeypatch):
    paths = [save(tmp_path, scaled(factor, 100_000), f"{factor}.onnx") for factor in range(4)]
    programs = [qaic.compile(path).path for path in paths[:3]]
    for age, program in zip((300, 200, 100), programs, strict=True):
        aged(program, age)
    # The oldest is wanted again.
    assert qaic.compile(paths[0]).path == programs[0]
    size = cache_contents.entries(folder)[0].nbytes
    assert size >= 400_000
    monkeypatch.setenv("QAIC_CACHE_LIMIT", str(size * 3))
    newest = qaic.compile(paths[3]).path
    assert {entry.path for entry in cache_contents.entries(folder)} == {programs[0], programs[2], newest}
    monkeypatch.setenv("QAIC_CACHE_LIMIT", "1K")
    assert qaic.compile(paths[1]).path == programs[1]
    # What was just made stays, however large.
    assert [entry.path for entry in cache_contents.entries(folder)] == [programs[1]]
    assert cache_contents.shrink(folder, 0) == size
    assert cache_contents.entries(folder) == []
    monkeypatch.delenv("QAIC_CACHE_LIMIT")
    assert qaic.compile(paths[1]).path == programs[1]


def test_a_program_that_is_being_made_is_not_removed(folder, tmp_path):
    program = qaic.compile(save(tmp_path, scaled())).path
    with cache_contents.locked(program.with_name(cache_contents.LOCK_NAME)):
        assert cache_contents.shrink(folder, 0) == 0
        assert program.exists()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", None),
        (" ", None),
        ("0", 0),
        ("17", 17),
        ("500M", 500 << 20),
        ("2 GiB", 2 << 30),
        ("1tb", 1 << 40),
    ],
)
def test_sizes_of_the_limit(monkeypatch, text, size):
    monkeypatch.setenv("QAIC_CACHE_LIMIT", text)
    assert cache_contents.size_limit() == size


@pytest.mark.parametrize("text", ["-1", "1.5G", "much", "1E", "G"])
def test_a_limit_that_is_no_size_is_refused_before_any_work(folder, tmp_path, monkeypatch, text):
    path = save(tmp_path, scaled())
    monkeypatch.setenv("QAIC_CACHE_LIMIT", text)
    with pytest.raises(OptionError, match=r"QAIC_CACHE_LIMIT is .*; bytes are expected") as caught:
        qaic.compile(path)
    assert caught.value.code == "option.cache_limit"
    assert cache_contents.entries(cache.open_cache().folder) == []
