"""A file is complete or as it was, and nothing else is left beside it."""

import os

import pytest

from qaic.support.atomic_io import replace_bytes, write_replacing
from qaic.support.open_regular import read_regular


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
        assert aside.parent == tmp_path
        assert not aside.exists()
        aside.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_replacing(path, write)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == ([] if before is None else [before])


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
        with pytest.raises(OSError, match="No regular file"):
            read_regular(endless)
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path)
