"""Programs and controls of the card for the tests in the guest of ``make test-kernel``."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import qaic
from kmd_sessions import VIRTUAL, device
from qaic import _core
from session_models import model, save

RNG = np.random.default_rng(17)
MAINLINE = {"QAIC_DEVICE": "kmd"}

in_guest = pytest.mark.skipif(
    "User Mode Linux" not in Path("/proc/cpuinfo").read_text(),
    reason="no guest with the mainline driver: `make test-kernel` has one",
)


def two_outputs(width=70):
    return model(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Softmax", ["m"], ["y"]),
            helper.make_node("ReduceSum", ["m"], ["z"], keepdims=0),
        ],
        [("x", "float32", ["batch", "seq", 8])],
        [("y", "float32", None), ("z", "float32", None)],
        {"w": RNG.standard_normal((8, width)).astype(np.float32)},
    )


def without_constants():
    return model(
        [helper.make_node("Softmax", ["x"], ["y"])],
        [("x", "float32", ["batch", "seq", 8])],
        [("y", "float32", None)],
    )


def compiled(folder, net, **options):
    return qaic.compile(save(folder, net), output_dir=folder / "out", **options).path


def random(*shape):
    return {"x": RNG.standard_normal(shape).astype(np.float32)}


def expected(program, feeds):
    with device(**VIRTUAL), qaic.Session(program) as session:
        return [session.run(feed) for feed in feeds]


def held():
    """Cores of the card that programs use."""
    facts = _core.Context().devices()[0]
    return facts["nsp_total"] - facts["nsp_free"]


def set_faults(plan):
    """Set the faults of the card, starting with its next access."""
    path = Path(os.environ["QAIC_GUEST_FAULTS"])
    # The second line distinguishes a plan from an equal earlier plan.
    path.with_suffix(".part").write_text(f"{plan}\n{next(PLANS)}\n")
    path.with_suffix(".part").rename(path)


PLANS = count()


def loaded():
    """Images on the card."""
    return _core.Context().devices()[0]["programs_loaded"]
