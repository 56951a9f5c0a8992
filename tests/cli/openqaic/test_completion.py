"""Completion scripts in the installed shells, which complete words that are typed into a terminal."""

import os
import pty
import re
import select
import shutil

import pytest

import child_process
from qaic.cli import openqaic
from qaic.cli.openqaic import SUBCOMMANDS

#: Command that starts a shell without the user's files, and the line that loads a completion script.
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source {folder}/_openqaic"),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -u -D; source {folder}/_openqaic"),
    "zsh, from fpath": (
        ["zsh", "-f", "-i"],
        "fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -D",
    ),
    "fish": (["fish", "--no-config", "-i"], "source {folder}/_openqaic"),
}
#: Line that is typed before TAB, and the completed line.
CASES = {
    "openqaic prof": "openqaic profile",
    "openqaic compile mod": "openqaic compile model.onnx",
    "openqaic compile model.onnx -o bui": "openqaic compile model.onnx -o build",
    "openqaic compile model.onnx -o out": "openqaic compile model.onnx -o outer",
    "openqaic run model.onnx --expect=outp": "openqaic run model.onnx --expect=outputs.npz",
    "openqaic bench model.onnx --beside on": "openqaic bench model.onnx --beside onnxruntime",
    "qaic-compile -aic-num-c": "qaic-compile -aic-num-cores",
    "qaic-compile -aic-hw-version=ai1": "qaic-compile -aic-hw-version=ai100",
    "qaic-compile -aic-hw-version ai1": "qaic-compile -aic-hw-version ai100",
    "qaic-compile -m=mod": "qaic-compile -m=model.onnx",
    "qaic-compile -m mod": "qaic-compile -m model.onnx",
    "qaic-compile -m=model.onnx -aic-binary-dir=bui": "qaic-compile -m=model.onnx -aic-binary-dir=build",
    "qaic-compile -aic-profiling-type raw": "qaic-compile -aic-profiling-type raw_device_stats",
    "qaic-exec -compile-o": "qaic-exec -compile-only",
    "qaic-runner -aic-profiling-sampling-rate=ha": "qaic-runner -aic-profiling-sampling-rate=half",
    "qaic-runner --aic-profiling-sampling-rate ha": "qaic-runner --aic-profiling-sampling-rate half",
    "qaic-runner -t bui": "qaic-runner -t build",
    "qaic-opstats --host-t": "qaic-opstats --host-trace",
    "qaic-opstats report --format ht": "qaic-opstats report --format html",
    "qaic-qpc extr": "qaic-qpc extract",
    "qaic-qpc extract model.onnx --output-d": "qaic-qpc extract model.onnx --output-dir",
    "qaic-util --que": "qaic-util --query",
}


def script(shell, capsys):
    assert openqaic.main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "fish", "tcsh", "zsh"])
def test_scripts_name_every_command(shell, capsys):
    out = script(shell, capsys)
    assert all(subcommand.name in out for subcommand in SUBCOMMANDS)


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete_words_of_every_tool(shell, capsys, tmp_path):
    command, load = SHELLS[shell]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    home, folder = tmp_path / "home", tmp_path / "work"
    for made in (home, folder / "build", folder / "outer"):
        made.mkdir(parents=True)
    for name in ("model.onnx", "outputs.npz"):
        (folder / name).touch()
    (home / "_openqaic").write_text(script(command[0], capsys))
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    ours, theirs = pty.openpty()
    # fish needs the controlling terminal of its session.
    command, options = ["setsid", "-c", *command], {"cwd": folder, "env": environment}
    try:
        with child_process.started(command, stdin=theirs, stdout=theirs, stderr=theirs, **options):
            os.close(theirs)
            ask(ours, load.format(folder=home) + "; printf '<%s' loaded '>'", "loaded")
            # The completed words become the arguments of a command that prints them.
            found = {typed: ask(ours, f"{typed}\t '>'\x01printf '<%s' ", typed.split()[0]) for typed in CASES}
    finally:
        os.close(ours)
    assert found == CASES


def ask(terminal, typed, first):
    """Type a line that prints words; the first word is known. Return the words."""
    os.write(terminal, f"{typed}\n".encode())
    shown = b""
    while (printed := re.search(rf"<({first}(?:<[^<>]*)*)<>".encode(), shown)) is None:
        ready, _, _ = select.select([terminal], [], [], child_process.WATCHDOG_S)
        assert ready, f"{typed!r} gave {shown!r}"
        shown += os.read(terminal, 1 << 16)
    # Shells append a slash to a folder, and an equals sign to an option that takes a value.
    return " ".join(word.rstrip("/=") for word in printed[1].decode().split("<") if word)
