"""Targets of the Makefile that install programs for tests: the installed packages, and the messages."""

import shutil
import subprocess

import pytest

from guide_blocks import ROOT

#: Target -> commands without which the target installs a package, and the package.
PACKAGES = {
    "browser": {"chromium": "chromium"},
    "java": {"java": "default-jre-headless"},
    "shells": {"zsh": "zsh", "fish": "fish"},
}
APT = """#!/bin/sh
echo "$@" >>{calls}
exit {code}
"""


@pytest.fixture
def make(tmp_path):
    """Runs a target on a machine with some commands; returns its output and the calls of ``apt-get``."""

    def made(target, *, has=(), user=0, code=0):
        folder, calls = tmp_path / "bin", tmp_path / "calls"
        folder.mkdir()
        for name in ("make", "sh", "find", "nproc", "uname"):
            (folder / name).symlink_to(shutil.which(name))
        for name, text in {
            "apt-get": APT.format(calls=calls, code=code),
            "id": f"#!/bin/sh\necho {user}\n",
            **dict.fromkeys(has, "#!/bin/sh\n"),
        }.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        done = subprocess.run(
            ["make", target], cwd=ROOT, env={"PATH": str(folder)}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, calls.read_text().splitlines() if calls.exists() else []

    return made


@pytest.mark.parametrize("target", PACKAGES)
def test_missing_programs_are_installed(make, target):
    out, calls = make(target)
    assert out == ""
    assert [call.split()[-1] for call in calls] == [*PACKAGES[target].values()]


@pytest.mark.parametrize("target", PACKAGES)
def test_programs_that_are_there_are_left_alone(make, target):
    assert make(target, has=PACKAGES[target]) == ("", [])


@pytest.mark.parametrize("target", PACKAGES)
def test_without_root_the_skipped_tests_are_named(make, target):
    out, calls = make(target, user=1000)
    assert calls == []
    for line, command in zip(out.splitlines(), PACKAGES[target], strict=True):
        assert line.startswith(f"no {command}, and installing it takes root and apt-get: the tests of ")


@pytest.mark.parametrize("target", PACKAGES)
def test_an_installation_that_fails_fails_nothing(make, target):
    out, calls = make(target, code=100)
    assert [call.split()[0] for call in calls] == ["install", "update"] * len(PACKAGES[target])
    for line, package in zip(out.splitlines(), PACKAGES[target].values(), strict=True):
        assert line.startswith(f"{package} could not be installed: the tests of ")
