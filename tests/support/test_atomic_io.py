"""A file is complete or unchanged, and no other file is left next to it."""

import itertools
import os
import resource
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from child_process import WATCHDOG_S, started
from qaic.support import atomic_io
from qaic.support.atomic_io import check_writable, copy_replacing, replace_bytes, work_folder, write_replacing
from qaic.support.open_regular import read_regular


def test_a_folder_without_write_access_is_named():
    # No file can be created in this folder, even by root.
    with pytest.raises(OSError, match="'/proc/self'"):
        check_writable(Path("/proc/self"))


def test_a_file_is_replaced(tmp_path):
    path = tmp_path / "a.txt"
    for content in (b"first", b"", b"third"):
        replace_bytes(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("before", [None, b"as it was"])
def test_a_failure_leaves_what_was_there(tmp_path, before):
    path = tmp_path / "a.txt"
    if before is not None:
        path.write_bytes(before)

    def write(aside):
        assert aside.parent.parent == tmp_path
        assert not aside.exists()
        aside.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_replacing(path, write)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == ([] if before is None else [before])


@pytest.mark.parametrize("size", [0, 5, (2 << 20) - 1, 2 << 20, (5 << 20) + 3])
def test_a_file_is_replaced_by_a_copy(tmp_path, size):
    source, path = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(os.urandom(size))
    path.write_bytes(b"before")
    copy_replacing(source, path)
    assert path.read_bytes() == source.read_bytes()
    assert not path.samefile(source)
    assert {entry.name for entry in tmp_path.iterdir()} == {"source", "copy"}


def test_the_error_is_that_of_writing(tmp_path):
    with pytest.raises(FileNotFoundError):
        replace_bytes(tmp_path / "missing" / "a.txt", b"")


def test_writers_of_one_file_do_not_meet(tmp_path):
    path, asides = tmp_path / "a.txt", []

    def outer(aside):
        aside.write_bytes(b"outer")
        asides.append(aside)
        write_replacing(path, lambda inner: (asides.append(inner), inner.write_bytes(b"inner")))

    write_replacing(path, outer)
    assert len(set(asides)) == 2
    assert path.read_bytes() == b"outer"
    assert list(tmp_path.iterdir()) == [path]


def test_what_has_no_end_is_not_read(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"content")
    assert read_regular(path) == b"content"
    os.mkfifo(tmp_path / "pipe")
    for endless in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(OSError, match="Not a regular file"):
            read_regular(endless)
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o755])
def test_permissions_of_what_is_replaced_are_kept(tmp_path, mode):
    path = tmp_path / "a.txt"
    path.write_bytes(b"before")
    path.chmod(mode)
    seen = []
    write_replacing(
        path, lambda aside: (aside.write_bytes(b"after"), seen.append(aside.parent.stat().st_mode))
    )
    assert (path.read_bytes(), path.stat().st_mode & 0o7777) == (b"after", mode)
    # Other users cannot read the file while it is written.
    assert [found & 0o077 for found in seen] == [0]


def test_a_new_file_has_the_permissions_that_the_process_gives(tmp_path):
    (tmp_path / "expected").touch()
    replace_bytes(tmp_path / "a.txt", b"")
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "expected").stat().st_mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_the_owner_of_what_is_replaced_is_kept(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"before")
    os.chown(path, 12345, 54321)
    path.chmod(0o4750)
    replace_bytes(path, b"after")
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (12345, 54321, 0o4750)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_a_link(tmp_path, is_there):
    (tmp_path / "below").mkdir()
    path, target = tmp_path / "link", tmp_path / "below" / "target"
    path.symlink_to(target)
    if is_there:
        target.write_bytes(b"before")
    replace_bytes(path, b"after")
    assert path.is_symlink()
    assert target.read_bytes() == b"after"


def test_a_device_is_written_to_and_stays_one(tmp_path):
    path = tmp_path / "full"
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        replace_bytes(path, b"x")
    assert caught.value.filename == str(path)
    assert Path("/dev/full").is_char_device()
    replace_bytes(Path("/dev/null"), b"x")
    assert Path("/dev/null").is_char_device()


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(b"before")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            replace_bytes(path, bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert caught.value.filename == str(path)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"before"]


def test_ctrl_c_before_the_writing_leaves_nothing(tmp_path):
    # Regression: the signal came while a call had released the interpreter lock, and the folder remained.
    path = tmp_path / "a.txt"
    is_writing = False

    def write(aside):
        nonlocal is_writing
        is_writing = True
        aside.touch()

    for moment in itertools.count():
        left = moment

        def interrupted(frame, event, _argument):
            nonlocal left
            if frame.f_code.co_filename != atomic_io.__file__ or is_writing:
                return None
            # The result of a call is not yet stored when its next instruction begins.
            frame.f_trace_opcodes = True
            if event == "opcode":
                left -= 1
                if left < 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return interrupted

        tracing = sys.gettrace()
        sys.settrace(interrupted)
        try:
            write_replacing(path, write)
        except KeyboardInterrupt:
            assert list(tmp_path.iterdir()) == []
        else:
            break
        finally:
            sys.settrace(tracing)
    assert list(tmp_path.iterdir()) == [path]
    assert moment > 100


def test_what_a_killed_writer_leaves_goes_with_the_next_file(tmp_path):
    script = """
import os, signal, sys
from pathlib import Path
from qaic.support.atomic_io import write_replacing
def write(aside):
    aside.write_bytes(b"half")
    sys.stdin.read(1)
    os.kill(os.getpid(), signal.SIGKILL)
write_replacing(Path(sys.argv[1]), write)
"""
    path = tmp_path / "a.txt"
    command = [sys.executable, "-c", script, path]
    with ExitStack() as stack:
        children = [stack.enter_context(started(command, stdin=subprocess.PIPE)) for _ in range(3)]
        wait_for(lambda: sum(1 for _ in tmp_path.rglob("a.txt")) == 3)
        replace_bytes(tmp_path / "b.txt", b"")
        # The owners of these folders are running.
        assert len(list(tmp_path.iterdir())) == 4
        for child in children:
            child.communicate(b".")
    replace_bytes(tmp_path / "b.txt", b"")
    assert list(tmp_path.iterdir()) == [tmp_path / "b.txt"]


def wait_for(condition):
    deadline = time.monotonic() + WATCHDOG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_abandoned_folders_go_although_another_process_removes_one_first(tmp_path, monkeypatch):
    folders = [tmp_path / f".openqaic-{number}.tmp" for number in range(3)]
    for folder in folders:
        folder.mkdir()
    is_work_folder, removed = atomic_io.is_work_folder, []

    def is_found(name):
        if not removed:
            removed.append(name)
            (tmp_path / name).rmdir()
        return is_work_folder(name)

    monkeypatch.setattr(atomic_io, "is_work_folder", is_found)
    assert not atomic_io.remove_abandoned(tmp_path)
    assert removed
    assert not any(folder.exists() for folder in folders)


@pytest.mark.parametrize("taken", ["file", "link", "pipe"])
def test_what_only_is_called_as_a_work_folder_stays(tmp_path, taken):
    place = tmp_path / ".openqaic-0.tmp"
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").touch()
    if taken == "file":
        place.write_bytes(b"mine")
    elif taken == "link":
        place.symlink_to(other)
    else:
        os.mkfifo(place)
    replace_bytes(tmp_path / "a.txt", b"content")
    assert sorted(tmp_path.iterdir()) == [place, tmp_path / "a.txt", other]
    assert (other / "kept").exists()


def test_more_writers_than_numbered_folders_do_not_meet(tmp_path):
    with ExitStack() as stack:
        folders = [stack.enter_context(work_folder(tmp_path)) for _ in range(12)]
        assert len(set(folders)) == 12
        assert not any(list(folder.iterdir()) for folder in folders)
    assert list(tmp_path.iterdir()) == []


def test_files_are_written_where_there_are_no_locks(tmp_path, monkeypatch):
    def refused(*_arguments):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(atomic_io.fcntl, "flock", refused)
    for content in (b"first", b"second"):
        replace_bytes(tmp_path / "a.txt", content)
        assert (tmp_path / "a.txt").read_bytes() == content
    assert list(tmp_path.iterdir()) == [tmp_path / "a.txt"]
