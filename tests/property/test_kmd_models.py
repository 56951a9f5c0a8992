"""Random programs give the same bytes on emulated cards and on virtual cards."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from test_session_models import models

import kmd_sessions
import qaic
import session_models
from qaic.errors import CompileError, InferenceError


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(
    models(),
    st.sampled_from([0, 40, 70]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_random_models(drawn, level, combine_in, combine_out, fp16):
    built, arrays = drawn
    options = {
        "stats_level": level,
        "combine_inputs": combine_in,
        "combine_outputs": combine_out,
        "convert_to_fp16": fp16,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = session_models.save(Path(folder), built)
        try:
            program = qaic.compile(path, output_dir=Path(folder) / "out", **options).path
            with kmd_sessions.device(**kmd_sessions.VIRTUAL), qaic.Session(program) as session:
                session.run(arrays)
        except (CompileError, InferenceError):
            # Other tests cover such programs.
            assume(False)
        others = {name: np.flip(array).copy() if array.ndim else array for name, array in arrays.items()}
        try:
            kmd_sessions.on_both(program, [arrays, others], runs=2)
        except InferenceError:
            # At other positions, indices may be out of range, on both devices.
            kmd_sessions.on_both(program, [arrays], runs=2)
