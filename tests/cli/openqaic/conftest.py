"""A command in its own folder, with a model and a program."""

import pytest

from qaic.cli import console, openqaic
from session_models import affine, save


@pytest.fixture
def call(capfd, tmp_path, monkeypatch):
    """Calls the command in its own folder; returns the exit code, the output and the errors."""
    monkeypatch.chdir(tmp_path)

    def called(*argv):
        try:
            code = console.run(openqaic.tool, [str(argument) for argument in argv])
        except SystemExit as error:
            code = error.code
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return called


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("QAIC_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def model(tmp_path):
    return save(tmp_path, affine())


@pytest.fixture
def program(call, model, tmp_path):
    assert call("compile", model, "-o", tmp_path / "program")[0] == 0
    return tmp_path / "program" / "programqpc.bin"
