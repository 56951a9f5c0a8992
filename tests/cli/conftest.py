"""What the tests of the tools share."""

import pytest

from runner_support import run


@pytest.fixture
def tool(capfd, tmp_path, monkeypatch):
    """Runs ``qaic-runner`` in a folder of its own; returns exit code, lines and complaints."""
    monkeypatch.chdir(tmp_path)

    def runner(*arguments):
        code = run(*arguments)
        captured = capfd.readouterr()
        return code, captured.out.splitlines(), captured.err

    return runner
