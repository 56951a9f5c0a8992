"""Texts are read completely from regular files, up to a limit."""

import os

import pytest

from qaic.support.open_regular import NotRegularError, read_text


@pytest.mark.parametrize("content", [b"", b"a,b", b"\xef\xbb\xbfa,b", "größe".encode()])
def test_a_text_is_read_without_its_mark(tmp_path, content):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    assert read_text(path, len(content)) == content.decode("utf-8-sig")


@pytest.mark.parametrize(
    ("content", "found"), [(b"12345", "more than 4 bytes"), (b"a\xff", "not UTF-8 at 1")]
)
def test_what_is_no_small_text_is_refused(tmp_path, content, found):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^found .*{found}"):
        read_text(path, 4)


def test_a_pipe_without_a_writer_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotRegularError):
        read_text(tmp_path / "pipe", 4)
