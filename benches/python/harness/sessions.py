"""Sessions of both sides for the same model, and the check that their results are equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnxruntime

import qaic

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .models import Model

#: Tolerance, relative to the largest output: both sides run the same kernels, on graphs that were optimized
#: at different times.
_TOLERANCE = 1e-4


def ours(model: Model, **options: object) -> qaic.Session:
    """Compile (or find in the cache) and load."""
    session = qaic.Session(model.path, **model.options, **options)
    session.setup()
    return session


def theirs(model: Model, threads: int) -> onnxruntime.InferenceSession:
    """Return onnxruntime's session with `threads` threads per call; all other settings are defaults."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(model.path), options, providers=["CPUExecutionProvider"])


def check_equal(session: qaic.Session, other: onnxruntime.InferenceSession, model: Model) -> None:
    """Fail unless both give the same results, because a comparison of different work has no meaning."""
    expected: list[NDArray[np.float32]] = other.run(None, model.feeds)
    for found, wanted in zip(session.run(model.feeds).values(), expected, strict=True):
        error = float(np.abs(found - wanted).max()) / max(1.0, float(np.abs(wanted).max()))
        if not error <= _TOLERANCE:
            raise SystemExit(f"{model.path.name}: outputs differ by {error:.1e} of the largest value")
