"""The compile cache contains only complete programs, within the size limit."""

import errno
import importlib.metadata
import itertools
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from onnx import helper

import qaic
from child_process import started
from qaic.cli.openqaic import main as console_run
from qaic.compiler import cache, cache_contents
from qaic.errors import OptionError
from qaic.support.atomic_io import work_folder
from session_models import model, save

#: Prints when the samples of a calibration run, which takes as long as the test allows.
HOOK = """
import sys, threading
from qaic.compiler.calibration import collector
def run(self, path, workers):
    assert path.stat().st_size
    sys.stderr.write("working\\n"); sys.stderr.flush()
    threading.Event().wait()
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
    """Folders of work in progress: the program that is being written, and the samples that are running."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.tmp"))


@pytest.fixture
def calibrating(tmp_path, folder):
    """A `qaic-compile` that is calibrating."""
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    path = save(tmp_path, scaled())
    np.ones(4, np.float32).tofile(tmp_path / "x.raw")
    (tmp_path / "inputs.txt").write_text(f"{tmp_path / 'x.raw'}\n")
    with started(
        [sys.executable, "-m", "qaic.cli.compile", f"-m={path}", f"-aic-binary-dir={tmp_path / 'out'}",
         f"-input-list-file={tmp_path / 'inputs.txt'}", "-convert-to-quantize"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    ) as child:  # fmt: skip
        assert child.stderr.readline() == "working\n"
        yield child


def test_a_terminated_calibration_leaves_nothing(calibrating, folder):
    assert len(unfinished(folder)) == 2
    calibrating.send_signal(signal.SIGTERM)
    assert calibrating.communicate()[1] == "error: terminated\n"
    assert calibrating.returncode == 143
    assert unfinished(folder) == []


def test_what_a_killed_calibration_leaves_goes_with_the_next_compilation(calibrating, folder, tmp_path):
    left = unfinished(folder)
    assert len(left) == 2
    qaic.compile(save(tmp_path, scaled(3.0)))
    # The owner of the files is running.
    assert unfinished(folder) == left
    calibrating.kill()
    calibrating.wait()
    assert unfinished(folder) == left
    qaic.compile(save(tmp_path, scaled(4.0)))
    assert unfinished(folder) == []


def test_what_a_killed_writer_leaves_goes_with_the_next_compilation(folder, tmp_path):
    program = qaic.compile(save(tmp_path, scaled())).path
    aside = folder / ".openqaic-0.tmp"
    aside.mkdir()
    (aside / "programqpc.bin").write_bytes(b"half")
    qaic.compile(save(tmp_path, scaled(3.0)))
    assert not aside.exists()
    assert program.exists()


def test_a_compilation_lists_the_folder_of_no_other_program(folder, tmp_path, monkeypatch):
    # Regression: each compilation listed the folders of all programs to find files of killed processes.
    others = {str(qaic.compile(save(tmp_path, scaled(float(factor)))).path.parent) for factor in range(3)}
    listed, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path=".": (listed.append(str(path)), scandir(path))[1])
    qaic.compile(save(tmp_path, scaled(9.0)))
    assert str(folder) not in listed
    assert not others & set(listed)


def aged(path, seconds):
    """Set the last use of a program to this time ago."""
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns - seconds * 10**9, found.st_mtime_ns - seconds * 10**9))


#: Copies of a process that has imported the compiler.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["onnx.checker", "onnx.shape_inference", "qaic.compiler"])


def _compile(path, variables, answer):
    os.environ.clear()
    os.environ.update(variables)
    answer.send(qaic.compile(path).path)


def compiled_and_let_go(path):
    """Compile in a process that then ends, so that its program is not in use."""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_compile, args=(path, dict(os.environ), sender))
    process.start()
    process.join()
    assert process.exitcode == 0
    return receiver.recv()


def test_programs_that_were_not_wanted_for_the_longest_time_go_first(folder, tmp_path, monkeypatch):
    paths = [save(tmp_path, scaled(factor, 100_000), f"{factor}.onnx") for factor in range(4)]
    programs = [compiled_and_let_go(path) for path in paths[:3]]
    for age, program in zip((300, 200, 100), programs, strict=True):
        aged(program, age)
    # The oldest program is requested again.
    assert compiled_and_let_go(paths[0]) == programs[0]
    size = cache_contents.entries(folder)[0].nbytes
    assert size >= 400_000
    monkeypatch.setenv("QAIC_CACHE_LIMIT", str(size * 3))
    newest = compiled_and_let_go(paths[3])
    assert {entry.path for entry in cache_contents.entries(folder)} == {programs[0], programs[2], newest}
    monkeypatch.setenv("QAIC_CACHE_LIMIT", "1K")
    assert compiled_and_let_go(paths[1]) == programs[1]
    # The newest program is kept, for any size.
    assert [entry.path for entry in cache_contents.entries(folder)] == [programs[1]]
    assert cache_contents.shrink(folder, 0) == size
    assert cache_contents.entries(folder) == []
    monkeypatch.delenv("QAIC_CACHE_LIMIT")
    assert compiled_and_let_go(paths[1]) == programs[1]


def test_a_limit_never_removes_a_program_that_a_live_process_was_given(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("QAIC_CACHE_LIMIT", "1K")
    paths = [save(tmp_path, scaled(factor, 100_000), f"{factor}.onnx") for factor in range(3)]
    mine = [qaic.compile(path).path for path in paths[:2]]
    other = compiled_and_let_go(paths[2])
    assert all(path.exists() for path in (*mine, other))
    # A program from the cache is in use like a new program, also for commands of other processes.
    assert qaic.compile(paths[2]).path == other
    subprocess.run([sys.executable, "-m", "qaic", "cache", "clear"], check=True, capture_output=True)
    assert all(path.exists() for path in (*mine, other))


@pytest.mark.parametrize("name", ["numpy", "onnx", "onnxruntime"])
def test_the_key_names_the_libraries_that_compute_constants(monkeypatch, name):
    versions = cache._library_versions()
    key = cache.cache_key("model", {})
    monkeypatch.setattr(cache, "_library_versions", lambda: {**versions, name: "0.0"})
    assert cache.cache_key("model", {}) != key
    assert versions[name] == importlib.metadata.version(name)


def test_a_folder_where_others_may_write_has_a_folder_for_each_user(folder, tmp_path):
    folder.mkdir()
    folder.chmod(0o1777)
    program = qaic.compile(save(tmp_path, scaled())).path
    own = folder / f"user-{os.geteuid()}"
    assert program.is_relative_to(own)
    assert own.stat().st_mode & 0o777 == 0o700
    # Another user created the folder first.
    own.chmod(0o777)
    program = qaic.compile(save(tmp_path, scaled(3.0))).path
    assert not program.is_relative_to(folder)


@pytest.mark.parametrize("mode", [0o666, 0o664])
def test_a_program_that_others_may_write_is_not_believed(folder, tmp_path, mode):
    path = save(tmp_path, scaled())
    program = qaic.compile(path).path
    program.chmod(mode)
    # A file system can assign the number of a deleted file to the next file if no process has it open.
    with program.open("rb") as before:
        assert qaic.compile(path).path == program
        assert program.stat().st_mode & 0o022 == 0
        assert not os.path.samestat(program.stat(), os.fstat(before.fileno()))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize("name", ["programqpc.bin", ".lock", "."])
def test_what_belongs_to_another_user_is_not_believed(folder, tmp_path, name):
    path = save(tmp_path, scaled())
    program = qaic.compile(path).path
    os.chown(program.parent / name, 12345, 12345)
    again = qaic.compile(path).path
    assert again.stat().st_uid == 0
    # Another user could replace a program in a folder of that user.
    assert again.is_relative_to(folder) == (name != ".")


def test_locks_are_of_this_user_alone(folder, tmp_path):
    program = qaic.compile(save(tmp_path, scaled())).path
    assert program.with_name(cache_contents.LOCK_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_lock_file_does_not_block(folder, tmp_path, kind):
    path = save(tmp_path, scaled())
    lock = qaic.compile(path).path.with_name(cache_contents.LOCK_NAME)
    lock.unlink()
    if kind == "pipe":
        os.mkfifo(lock)
    elif kind == "link":
        lock.symlink_to(tmp_path / "elsewhere")
    else:
        lock.mkdir()
    lock.with_name("programqpc.bin").write_bytes(b"damaged")
    assert qaic.compile(path).path == lock.with_name("programqpc.bin")
    assert not (tmp_path / "elsewhere").exists()
    # A pipe or a link in place of the lock is replaced; a folder is kept.
    assert stat.S_IFMT(lock.lstat().st_mode) == (stat.S_IFDIR if kind == "folder" else stat.S_IFREG)


def test_a_held_lock_is_waited_for_only_while_its_holder_works(folder, tmp_path, monkeypatch):
    program = qaic.compile(save(tmp_path, scaled())).path
    lock = program.with_name(cache_contents.LOCK_NAME)
    waits = []
    monkeypatch.setattr(cache_contents.time, "sleep", waits.append)
    with cache_contents.locked(lock) as first:
        assert first
        with cache_contents.locked(lock) as second:
            assert not second
        assert not waits
        with cache_contents.locked(lock, workplace=folder) as third:
            assert not third
        idle = len(waits)
        assert idle > 0
        # The time limit does not expire while a process works on the program.
        with work_folder(folder) as working:
            steps = iter(range(3 * idle))
            monkeypatch.setattr(
                cache_contents.time,
                "sleep",
                lambda _: next(steps, None) is None and shutil.rmtree(working, ignore_errors=True),
            )
            with cache_contents.locked(lock, workplace=folder) as fourth:
                assert not fourth
            assert next(steps, None) is None


def test_a_program_that_takes_long_is_made_once(folder, tmp_path, monkeypatch):
    """Regression: after ten seconds, each process that waited for a program also compiled it."""
    source = qaic.compile(save(tmp_path, scaled())).path
    store, is_writing, is_over = cache.open_cache(), threading.Event(), threading.Event()
    polls = itertools.count()

    def write(path):
        is_writing.set()
        is_over.wait()
        shutil.copy(source, path)

    def sleep(_):
        # Longer than a process waits for a writer.
        if next(polls) == 3 * cache_contents._PATIENCE_S / cache_contents._POLL_S:
            is_over.set()
            writer.join()

    monkeypatch.setattr(cache_contents.time, "sleep", sleep)
    writer = threading.Thread(target=store.build, args=("key", write))
    writer.start()
    is_writing.wait()
    try:
        made = store.build("key", lambda _: pytest.fail("made again"))
    finally:
        is_over.set()
        writer.join()
    assert made.read_bytes() == source.read_bytes()


def test_a_program_that_is_looked_up_is_not_removed(folder, tmp_path, monkeypatch):
    """Another process shrinks the cache during a lookup, or a lookup ends while the cache shrinks."""
    paths = [save(tmp_path, scaled(factor), f"{factor}.onnx") for factor in (2.0, 3.0)]
    program, other = (compiled_and_let_go(path) for path in paths)
    usable = cache._is_usable

    def is_usable(path):
        found = usable(path)
        assert cache_contents.shrink(folder, 0) > 0
        return found

    with monkeypatch.context() as patch:
        patch.setattr(cache, "_is_usable", is_usable)
        assert qaic.compile(paths[0]).path == program
    assert program.exists()
    assert not other.exists()
    assert compiled_and_let_go(paths[1]) == other
    remove = cache_contents._remove_program

    def remove_after_lookup(path):
        assert qaic.compile(paths[1]).path == path == other
        return remove(path)

    monkeypatch.setattr(cache_contents, "_remove_program", remove_after_lookup)
    assert cache_contents.shrink(folder, 0) == 0
    assert other.exists()


def test_clear_removes_what_killed_processes_left(folder, tmp_path):
    """More processes than numbered folders ran at once, and a profiler ran next to a program."""
    program = qaic.compile(save(tmp_path, scaled())).path
    left = [parent / f".openqaic-{name}.tmp" for parent in (folder, program.parent) for name in ("0", "k1x")]
    for each in left:
        (each / "deep").mkdir(parents=True)
        (each / "deep" / "programqpc.bin").write_bytes(b"half")
    with work_folder(folder) as mine, work_folder(program.parent) as other:
        assert console_run(["cache", "clear"]) == 0
        assert mine.exists()
        assert other.exists()
    assert unfinished(folder) == []
    assert program.exists()


@pytest.mark.parametrize("refused", ["list", "remove"])
def test_clear_goes_on_after_a_program_that_it_may_not_change(folder, tmp_path, monkeypatch, capsys, refused):
    programs = [compiled_and_let_go(save(tmp_path, scaled(factor), f"{factor}.onnx")) for factor in range(3)]
    kept = programs[1]
    real = {"list": os.scandir, "remove": Path.unlink}[refused]

    def refuse(path=".", *words, **keywords):
        place = Path(path) if refused == "list" else Path(path).parent
        if place == kept.parent:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *words, **keywords)

    monkeypatch.setattr(*((os, "scandir") if refused == "list" else (Path, "unlink")), refuse)
    assert console_run(["cache", "clear"]) == 0
    monkeypatch.undo()
    assert [path.exists() for path in programs] == [False, True, False]
    assert "removed 2 programs" in capsys.readouterr().out


def test_clear_goes_on_after_what_it_cannot_remove(folder, tmp_path):
    programs = [compiled_and_let_go(save(tmp_path, scaled(factor), f"{factor}.onnx")) for factor in range(3)]
    # Files that a card's compiler left, also in the format of earlier versions.
    (programs[1].parent / ".card-1" / "qpc").mkdir(parents=True)
    (programs[1].parent / ".programqpc.bin.1.0.tmp").touch()
    with cache_contents.locked(programs[0].with_name(cache_contents.LOCK_NAME)):
        assert console_run(["cache", "clear"]) == 0
    assert [path.exists() for path in programs] == [True, False, False]
    assert [path.name for path in programs[1].parent.iterdir()] == [cache_contents.LOCK_NAME]


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
    with pytest.raises(OptionError, match=r"QAIC_CACHE_LIMIT is .*; a size such as") as caught:
        qaic.compile(path)
    assert caught.value.code == "option.cache_limit"
    assert cache_contents.entries(cache.open_cache().folder) == []


def test_a_cache_that_cannot_be_used_names_the_reason_and_the_end_of_its_programs(
    tmp_path, monkeypatch, caplog
):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("QAIC_CACHE_DIR", str(file))
    cache._private_folder.cache_clear()
    folder = cache.open_cache().folder
    assert caplog.messages == [
        f"the compile cache {file} cannot be used (File exists); {folder} is removed when the process ends; "
        "set output_dir"
    ]


def test_a_clock_that_was_set_back_keeps_no_program_for_long(folder, tmp_path, monkeypatch):
    paths = [save(tmp_path, scaled(factor, 100_000), f"{factor}.onnx") for factor in range(3)]
    stale, used, newest = (compiled_and_let_go(path) for path in paths)
    # The first program was last used while the clock was a year ahead.
    aged(stale, -365 * 86_400)
    aged(used, 100)
    assert [entry.path for entry in cache_contents.entries(folder)] == [newest, used, stale]
    # A time of a clock before 1970.
    os.utime(stale, ns=(-(10**18), -(10**18)))
    assert cache_contents.entries(folder)[-1] == cache_contents.Entry(stale, mock.ANY, 0)
    cache_contents.shrink(folder, 2 * cache_contents.entries(folder)[0].nbytes)
    assert [path.exists() for path in (newest, used, stale)] == [True, True, False]
    # The year passes.
    aged(used, -365 * 86_400)
    later_ns = max(used.stat().st_atime_ns, used.stat().st_mtime_ns) + 1
    monkeypatch.setattr(cache_contents.time, "time_ns", lambda: later_ns)
    assert [entry.path for entry in cache_contents.entries(folder)] == [used, newest]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize("place", ["folder", "program"])
def test_links_of_another_user_lead_to_no_file_of_this_one(folder, tmp_path, place):
    """Another user created this user's folder in a shared folder, or a link in its place."""
    victim = tmp_path / "home" / "program"
    victim.mkdir(parents=True)
    (victim / "programqpc.bin").write_bytes(bytes(100))
    (victim / "notes.txt").touch()
    folder.mkdir()
    folder.chmod(0o1777)
    mine = folder / f"user-{os.geteuid()}"
    link = mine if place == "folder" else mine / "key"
    if place == "program":
        mine.mkdir(mode=0o755)
        os.mkfifo(mine / ".in-use-1")
        os.chown(mine, 12345, 12345)
    link.symlink_to(victim.parent if place == "folder" else victim)
    os.lchown(link, 12345, 12345)
    before = sorted(victim.parent.rglob("*"))
    assert console_run(["cache", "clear"]) == 0
    program = qaic.compile(save(tmp_path, scaled())).path
    assert not program.is_relative_to(folder)
    assert sorted(victim.parent.rglob("*")) == before


def test_versions_that_share_a_folder_have_programs_of_their_own(folder, tmp_path, monkeypatch):
    path = save(tmp_path, scaled())
    mine = qaic.compile(path).path
    with monkeypatch.context() as patch:
        patch.setattr(cache._core, "__version__", "0.0.1")
        other = qaic.compile(path).path
        assert qaic.compile(path).path == other
    assert qaic.compile(path).path == mine != other
    assert {entry.path for entry in cache_contents.entries(folder)} == {mine, other}


def test_a_full_disk_is_reported_with_the_ways_to_make_room(tmp_path):
    def fail(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with pytest.raises(OSError, match="No space left on device; `openqaic cache prune --limit 1G`") as caught:
        cache.Cache(tmp_path).build("key", fail)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename
