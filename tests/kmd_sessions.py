"""The same inferences on a virtual card and on an emulated card, which uses the driver's system calls."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

import qaic

VIRTUAL = {"QAIC_DEVICE": "cpu"}
EMULATED = {"QAIC_DEVICE": "kmd", "QAIC_KMD": "emu"}


@contextmanager
def device(**variables):
    """Sessions in this block use these devices."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("QAIC_DEVICE", "QAIC_KMD", "QAIC_EMU_PROFILE", "QAIC_EMU_FAULTS", "QAIC_EMU_WORKLOAD"):
            patch.delenv(name, raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def on_both(program, feeds, *, runs=1, **options):
    """Run the inputs in order on both, check that all bytes are equal, and return the results."""
    found = []
    for variables in (VIRTUAL, EMULATED):
        with device(**variables), qaic.Session(program, **options) as session:
            found.append([session.run(feed) for _ in range(runs) for feed in feeds])
    for expected, results in zip(*found, strict=True):
        assert_same(results, expected)
    return found[1]


def assert_same(results, expected):
    """Check names, types, shapes and every byte."""
    assert list(results) == list(expected)
    for name, array in expected.items():
        given = results[name]
        assert (given.dtype, given.shape) == (array.dtype, array.shape)
        assert np.ascontiguousarray(given).tobytes() == np.ascontiguousarray(array).tobytes(), name
