"""Commands that tools print for their users: ``next: COMMAND``, and `` `COMMAND` `` within a hint.

A ``next`` can state its purpose: ``next, for latency: COMMAND``. Each test runs the commands that its calls
printed, without changes and in the same folder. It skips a command that a test of the same file printed for
the same arguments before, a command with the word FILE, which the user replaces, and the commands after a
call of Python, because they need its result.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

import device_free
from qaic.cli import console

TOOLS = ("openqaic", "qaic-compile", "qaic-opstats", "qaic-qpc", "qaic-runner", "qaic-util")
_COMMAND = re.compile(r"`([^`\n]+)`")
_BARE = re.compile(r"^(openqaic|qaic-)|\b(openqaic|qaic-(qpc|opstats|util)) [a-z]")
#: Options of measurements, instead of the default duration.
_SHORT = {"openqaic bench": ["-n", "2", "--warm-up", "0"]}

#: Beginning of a step that is a call of Python.
_CALL = "in Python: "

_STARTED_IN = str(Path.cwd())
_ran = set()


@dataclass(frozen=True)
class Step:
    """A printed command, its origin, and the files on which it depends."""

    command: str
    origin: str
    folder: str
    paths: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]

    @property
    def is_possible(self):
        """Return True if the command is complete, and nothing has changed since it was printed."""
        return (
            "FILE" not in self.command.split()
            and Path(self.folder).is_dir()
            and self.environment == _environment()
            and all((Path(self.folder) / path).exists() for path in self.paths)
        )


def _environment():
    return tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("QAIC_")))


def commands_of(line):
    """Commands of a printed line; a hint that begins with a command outside backquotes is an error."""
    kind, _, text = line.partition(": ")
    if kind.endswith("next") or kind.startswith("next, "):
        return [] if text.startswith(_CALL) else [text]
    if kind != "hint":
        return []
    assert not _BARE.search(_COMMAND.sub("", text)), f"{line!r}: a command within a hint has backquotes"
    return [command for command in _COMMAND.findall(text) if command.split(" ")[0] in (*TOOLS, "mkdir")]


def _anonymous(words):
    """Words without the paths, which differ from test to test."""
    return " ".join(re.sub(r"[^\s=,]*/", "", word) for word in words)


@contextlib.contextmanager
def collected():
    """Collect the steps that tools print in this process."""
    steps, origins, with_calls = [], [], set()
    with pytest.MonkeyPatch.context() as patch:
        run, print_text = console.run, console.print_text

        def noting_run(tool, argv):
            origins.append(_anonymous(map(str, argv or ())))
            try:
                return run(tool, argv)
            finally:
                origins.pop()

        def noting_print(text, **more):
            print_text(text, **more)
            if origins:
                folder = str(Path.cwd())
                # Escapes replace characters that a terminal must not receive; such a name is not that of its
                # file. A line end in a name cuts its command in two.
                lines = [
                    line
                    for line in text.split("\n")
                    if line.isprintable() and "\\x" not in line and line.count("`") % 2 == 0
                ]
                if f": {_CALL}" in text:
                    with_calls.add(origins[0])
                if origins[0] in with_calls:
                    return
                for command in (command for line in lines for command in commands_of(line)):
                    words = shlex.split(command)
                    # A word can be too long for a name.
                    paths = tuple(
                        word for word in words if len(word) < 256 and (Path(folder) / word).exists()
                    )
                    steps.append(Step(command, origins[0], folder, paths, _environment()))

        patch.setattr(console, "run", noting_run)
        patch.setattr(console, "print_text", noting_print)
        yield steps


def run_all(steps, file):
    """Run the steps that no test of this file has run; a step that fails fails the test."""
    if not steps:
        return
    # The folder of the tests keeps no file of a command, and the next command can read it.
    with tempfile.TemporaryDirectory() as aside, pytest.MonkeyPatch.context() as patch:
        for step in steps:
            words = shlex.split(step.command)
            key = (file, step.origin, _anonymous(words))
            if key in _ran or not step.is_possible:
                continue
            _ran.add(key)
            if os.environ.get("QAIC_DEVICE") == device_free.NO_DEVICE:
                patch.setenv("QAIC_DEVICE", "cpu")
            folder = aside if step.folder == _STARTED_IN else step.folder
            code, shown = _run(words + _SHORT.get(" ".join(words[:2]), []), folder)
            patch.undo()
            assert code == 0, f"`{step.command}`, printed by `{step.origin}`, ends with {code}:\n{shown}"


def _run(words, folder):
    if words[0] not in TOOLS:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr
    main = import_module(f"qaic.cli.{words[0].removeprefix('qaic-')}").main
    shown = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            code = main(words[1:])
        except SystemExit as end:
            code = end.code
    return code or 0, shown.getvalue()
