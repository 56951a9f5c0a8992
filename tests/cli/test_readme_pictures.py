"""The pictures of the README show what the current code shows; `make pictures` draws them again."""

import json
import os
import shutil
import sys
import tomllib
from importlib import import_module

import pytest

from guide_blocks import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.virtual_card("the picture shows virtual cards")]


@pytest.fixture
def pictures(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "pictures"))
    return import_module("readme")


def test_the_pictures_show_the_current_code(pictures, tmp_path, monkeypatch):
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, function = scripts["openqaic"].split(":")
    tool = tmp_path / "bin" / "openqaic"
    tool.parent.mkdir()
    code = f"import sys; from {module} import {function}; sys.exit({function}())"
    tool.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{code}' \"$@\"\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / "cache"))
    assert shutil.which("openqaic") == str(tool)
    texts = pictures.run_commands(tmp_path)
    assert json.loads((ROOT / "docs" / "images" / "shown.json").read_text()) == pictures.shown(texts)


def test_figures_make_no_difference_and_words_do(pictures):
    command = pictures.COMMANDS[0]
    one, same, other = (
        {**dict.fromkeys(pictures.COMMANDS, "x"), command: text}
        for text in (
            "compiled in 0.31 s: a, 2.8 MB",
            "compiled in 112 ms: a, 3 MB",
            "made in 0.31 s: a, 2.8 MB",
        )
    )
    assert pictures.shown(one) == pictures.shown(same) != pictures.shown(other)
