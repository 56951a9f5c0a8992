"""Containers and inference sets for the tests of ``qaicrt.InferenceSet``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import qaicrt
import session_models
from child_process import WATCHDOG_S
from qaic import _core
from qaic.compiler.driver import compile_model
from qaic.options import resolve

S = qaicrt.QStatus
DATA = Path(__file__).parent / "data" / "qpc"

#: One input `image` of 768 bytes, one output `logits` of 40; `noop` copies the start of one to the other.
PLAIN = DATA / "s01_simple_f32_file.qpc"
#: One input `tokens` of up to 64 bytes, one output `out` of 16.
PARTIAL = DATA / "s06_partial_single.qpc"
#: Inputs `input_ids` and `mask`, output `logits`, with 1, 8 or 32 tokens.
DYNAMIC = DATA / "s08_dynamic_shapes.qpc"


def compiled(model):
    """Compile a model for the ``cpu`` device; return the directory of its container."""
    options = resolve({}, options_path=None, model_is_container=False)
    return str(compile_model(model, options.compile, options.set_compile).parent)


def affine():
    """Container of ``session_models.affine()``."""
    return compiled(session_models.affine())


def affine_of(x):
    """Return the result of that model for ``x``."""
    weight = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    return np.maximum(x @ weight + np.linspace(0, 1, 4, dtype=np.float32), 0)


class Client:
    """A context, a container, and inference sets of both."""

    def __init__(self, path):
        self.context = qaicrt.Context()
        self.qpc = qaicrt.Qpc(str(path))

    def inference_set(self, set_size=2, activations=1, dev=0, properties=None):
        return qaicrt.InferenceSet(self.context, self.qpc, dev, set_size, activations, properties)

    def vector(self, *arrays):
        """A vector of ``arrays``, or of zeros."""
        made = qaicrt.InferenceVector(self.qpc.getBufferMappings(), qaicrt.InferenceVector.ZERO_FILL)
        made.getVector()[: len(arrays)] = [qaicrt.QBuffer(array) for array in arrays]
        return made

    def buffers(self):
        """Buffers of zeros, one per binding."""
        return [qaicrt.QBuffer(bytes(mapping.size)) for mapping in self.qpc.getBufferMappings()]

    def cores(self):
        """Free cores of the first device, after dropped objects have released theirs."""
        assert _core.await_teardown(WATCHDOG_S)
        status, found = qaicrt.Util().getResourceInfo(0)
        assert status == S.QS_SUCCESS
        return found.nspFree


def take(answer):
    """Return the value of a (status, value) pair whose status must be success."""
    status, value = answer
    assert status == S.QS_SUCCESS
    return value


def refused(capfd, answer, *parts, status=S.QS_INVAL):
    """Assert that the result is a refusal without a value, and that the log contains every part."""
    error = capfd.readouterr().err
    assert answer in (status, (status, None)), error
    assert "[ERROR]" in error
    for part in parts:
        assert part in error
