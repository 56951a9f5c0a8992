"""Messages of the scripts of `make test-kernel` about missing parts, with fake commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "kernel"
#: Commands that the scripts themselves need.
BASICS = (
    *(
        "bash",
        "sh",
        "dirname",
        "realpath",
        "mktemp",
        "rm",
        "ls",
        "head",
        "sha256sum",
        "cut",
        "uname",
        "mkdir",
        "cat",
    ),
    *("flock", "tail", "nproc", "cp", "mv", "sleep", "seq", "timeout", "touch", "python3"),
)


@pytest.fixture
def machine(tmp_path):
    """A machine with these commands: returns functions that create a command, and that run a script."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in BASICS:
        found = shutil.which(name)
        if found:
            (commands / name).symlink_to(found)

    def put(name, body="exit 0"):
        (commands / name).unlink(missing_ok=True)
        (commands / name).write_text(f"#!/bin/sh\n{body}\n")
        (commands / name).chmod(0o755)

    for name in ("flex", "bison", "bc", "xz", "make", "gcc", "tar", "strip", "apt-get"):
        put(name)
    put("id", "echo 0")
    put("uname", "echo x86_64")

    def run(script, *arguments, **variables):
        environment = {
            "PATH": str(commands),
            "HOME": str(tmp_path),
            "TMPDIR": str(tmp_path),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            **variables,
        }
        return subprocess.run(
            [shutil.which("bash"), str(FOLDER / script), *map(str, arguments)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return commands, put, run


def _no_apt(commands, _):
    (commands / "flex").unlink()
    (commands / "apt-get").unlink()


def _no_rights(commands, put):
    (commands / "bison").unlink()
    put("id", "echo 1000")


def _no_network(commands, put):
    (commands / "bc").unlink()
    put("apt-get", "echo no network >&2; exit 100")


def _other_machine(_, put):
    put("uname", "echo aarch64")


def _new_compiler(_, put):
    put("gcc", "echo gcc 99")
    put("make", "echo the compiler knows better; exit 2")


def _no_source(*_):
    pass


@pytest.mark.parametrize(
    ("break_it", "source", "words"),
    [
        (_no_apt, "archive", "there is no apt-get to install flex"),
        (_no_rights, "archive", "installing bison takes root rights"),
        (_no_network, "archive", "apt-get cannot install bc"),
        (_other_machine, "archive", "needs x86_64, this is aarch64"),
        (_new_compiler, "archive", "did not build with gcc 99"),
        (_no_source, "none", "none is missing"),
    ],
)
def test_what_is_missing_is_named_with_what_is_lost_and_nothing_fails(
    machine, tmp_path, break_it, source, words
):
    commands, put, run = machine
    (tmp_path / "archive").write_bytes(b"")
    break_it(commands, put)
    variables = {"KERNEL_SOURCE": str(tmp_path / source)}
    built = run("build_kernel.sh", **variables)
    assert (built.returncode, built.stdout) == (77, "")
    assert words in built.stderr
    assert "nothing is checked against the real driver" in built.stderr
    whole = run("run.sh", "python3", **variables)
    assert whole.returncode == 0
    assert words in whole.stderr
    assert "test-kernel: not run." in whole.stderr
    assert "that programs run on the driver" in whole.stderr


def test_a_guest_that_hangs_ends_with_its_log(machine, tmp_path):
    _, _, run = machine
    card, kernel, script, lives = (tmp_path / name for name in ("card", "kernel", "script", "lives"))
    os.mkfifo(lives)
    # The card ends when the other end of the pipe is closed.
    card.write_text(
        f"#!{sys.executable}\nimport socket, sys\n"
        f"s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); open({str(lives)!r}).read()\n"
    )
    kernel.write_text(f"#!/bin/sh\necho the kernel hangs here\nexec sleep 50 9>{lives}\n")
    script.write_text("true\n")
    for path in (card, kernel):
        path.chmod(0o755)
    ended = run("run_in_guest.sh", kernel, card, 2, script)
    assert ended.returncode == 1
    assert "the guest did not end within 2 seconds" in ended.stderr
    assert "the kernel hangs here" in ended.stderr


def test_the_card_of_a_guest_that_cannot_begin_is_named(machine, tmp_path):
    _, _, run = machine
    card = tmp_path / "card"
    card.write_text("#!/bin/sh\necho no socket here >&2\n")
    card.chmod(0o755)
    ended = run("run_in_guest.sh", "kernel", card, 2, os.devnull)
    assert ended.returncode == 1
    assert f"the card {card} did not begin" in ended.stderr
    assert "no socket here" in ended.stderr
