"""Runs the vendor's compiler: forwards its output, and ends it if the process is interrupted."""

import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Final

#: output of the compiler: its stdout as INFO, its stderr as WARNING
OUTPUT_LOGGER: Final = "qaic.compiler.card"
_output = logging.getLogger(OUTPUT_LOGGER)

#: most characters of a line; a longer line is shown in pieces
_LONGEST_LINE: Final = 1 << 14
#: most characters of output that are kept for the error message
_KEPT_CHARACTERS: Final = 1 << 20
#: seconds between the signal to exit and the signal that kills the compiler
_GRACE: Final = 5.0
#: seconds that the compiler may take to print its help
_HELP_TIME: Final = 30.0


@dataclass(frozen=True, slots=True)
class Ended:
    """Result of a run of the compiler."""

    #: exit code, or the negated number of the signal that ended the process
    code: int
    #: end of its stderr, or of its stdout if stderr is empty
    words: str


def run(command: Sequence[str]) -> Ended:
    """Run a command to its end, in its own process group. Blocking.

    Raises OSError if the command cannot be started. After a KeyboardInterrupt, the whole group has ended.
    """
    children: list[subprocess.Popen[str]] = []
    # The main thread receives Ctrl-C, possibly after the process started and before `Popen` returned.
    with ThreadPoolExecutor(1) as starter:
        try:
            starter.submit(_start, command, children).result()
            return _followed(children[0])
        except BaseException:
            starter.shutdown()
            for child in children:
                # A child whose output was followed has ended.
                if child.returncode is None:
                    _end(child)
                    for stream in filter(None, (child.stdout, child.stderr)):
                        stream.close()
            raise


def _start(command: Sequence[str], children: list[subprocess.Popen[str]]) -> None:
    child = subprocess.Popen(  # noqa: S603  # the program that the user configured
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    children.append(child)


def _followed(child: subprocess.Popen[str]) -> Ended:
    """Forward the output of a compiler until it exits."""
    assert child.stdout is not None  # noqa: S101
    assert child.stderr is not None  # noqa: S101
    kept = (_Tail(), _Tail())
    readers = [
        threading.Thread(target=_forward, args=(stream, level, tail), daemon=True)
        for stream, level, tail in (
            (child.stdout, logging.INFO, kept[0]),
            (child.stderr, logging.WARNING, kept[1]),
        )
    ]
    for reader in readers:
        reader.start()
    try:
        code = child.wait()
        for reader in readers:
            reader.join()
    except BaseException:
        _end(child)
        raise
    finally:
        # A grandchild may keep a stream open; then its reader still uses the stream.
        for reader, stream in zip(readers, (child.stdout, child.stderr), strict=True):
            if not reader.is_alive():
                stream.close()
    return Ended(code, kept[1].text() or kept[0].text())


def help_text(program: str) -> str:
    """Return the help text of a compiler; empty if it prints none."""
    try:
        found = subprocess.run(  # noqa: S603  # as above
            [program, "-h"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_HELP_TIME, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return (found.stdout + found.stderr).decode("utf-8", "replace")


class _Tail:
    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._size = 0

    def add(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line)
        while self._size > _KEPT_CHARACTERS:
            self._size -= len(self._lines.popleft())

    def text(self) -> str:
        return "".join(self._lines).strip()


def _forward(stream: IO[str], level: int, tail: _Tail) -> None:
    with contextlib.suppress(ValueError):
        while line := stream.readline(_LONGEST_LINE):
            tail.add(line)
            if text := line.rstrip():
                _output.log(level, "%s", text)


def _end(child: subprocess.Popen[str]) -> None:
    """End a process group: terminate it, then kill it."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)
    # Children of the process may have ignored the first signal.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
