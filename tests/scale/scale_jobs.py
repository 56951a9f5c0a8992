"""Rows, a model, and a function that runs an example, for the tests of jobs."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import session_models
from serving_support import BATCH, WIDTH, expected

EXAMPLES = Path(__file__).parents[2] / "examples" / "scale"
ROWS = 301


def rows():
    return np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)


def model(folder):
    return session_models.save(folder, session_models.affine(WIDTH, BATCH))


def results(x):
    return np.concatenate([expected(x[start : start + BATCH]) for start in range(0, len(x), BATCH)])


def two_cards(folder):
    """Return the environment of processes that share two cards."""
    shared = folder / "shared"
    shared.mkdir(mode=0o700, exist_ok=True)
    return {**os.environ, "QAIC_CPU_DEVICES": "2", "QAIC_CPU_SHARED": str(shared)}


def run(folder, name, *arguments):
    """Run an example on two separate cards; return the last line of its output."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=two_cards(folder),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()[-1]
