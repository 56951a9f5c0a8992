"""The pictures of the README match the current code; `make pictures` draws them again."""

import json
import os
from importlib import import_module

import pytest

from guide_blocks import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.virtual_card("the picture shows virtual cards")]


@pytest.fixture
def pictures(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "pictures"))
    return import_module("readme")


def test_the_pictures_show_the_current_code(pictures, warm_commands, tmp_path, monkeypatch):
    monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{warm_commands}{os.pathsep}{os.environ['PATH']}")
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
