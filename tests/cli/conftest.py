"""Fixtures for the tests of the tools."""

import pytest

import warm_tools
from guide_blocks import ROOT
from runner_support import run


@pytest.fixture(scope="session")
def warm_commands(tmp_path_factory):
    """A folder with the commands of the package, whose processes are copies of a warm one."""
    folder = tmp_path_factory.mktemp("bin")
    with warm_tools.installed(folder, ROOT):
        yield folder


@pytest.fixture
def tool(capfd, tmp_path, monkeypatch):
    """Runs ``qaic-runner`` in its own folder; returns the exit code, the lines and the errors."""
    monkeypatch.chdir(tmp_path)

    def runner(*arguments):
        code = run(*arguments)
        captured = capfd.readouterr()
        return code, captured.out.splitlines(), captured.err

    return runner
