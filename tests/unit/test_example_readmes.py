"""Examples with models from packages: the commands in their READMEs print the output in the READMEs."""

import importlib.util
import os
import shlex
import subprocess
import sys

import pytest

from guide_blocks import BLOCK, ROOT

PACKAGES = {"decoder": (), "image": ("rapidocr_onnxruntime", "PIL"), "text": ("magika",)}


@pytest.mark.parametrize("name", PACKAGES)
def test_commands_print_the_shown_output(name, tmp_path):
    missing = [package for package in PACKAGES[name] if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    found = list(BLOCK.finditer((ROOT / "examples" / name / "README.md").read_text()))
    (commands,) = (block["code"] for block in found if block["language"] == "sh" and not block["mark"])
    shown = [block["code"] for block in found if block["language"] == "text"]
    for linked in ("examples", "Makefile"):
        (tmp_path / linked).symlink_to(ROOT / linked)
    done = subprocess.run(
        ["bash", "-euc", commands.replace("python ", f"{shlex.quote(sys.executable)} ")],
        cwd=tmp_path,
        env={**os.environ, "QAIC_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert shown in ([], [done.stdout])


def test_every_folder_of_examples_is_in_the_index():
    index = (ROOT / "examples" / "README.md").read_text()
    for path in (ROOT / "examples").iterdir():
        if path.name not in ("README.md", "__pycache__"):
            assert path.name in index, path
