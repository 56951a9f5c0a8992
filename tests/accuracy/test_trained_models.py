"""Trained models, if they are installed: measuring changes no bit of their outputs."""

import numpy as np
import pytest

import qaic
from qaic.accuracy.capture import instrumented
from qaic.accuracy.comparison import compile_options_of
from qaic.accuracy.prepared import options_of
from qaic.accuracy.samples import Samples
from qaic.cli.demo import FileTypeModel
from qaic.errors import StateError


@pytest.fixture(scope="module")
def magika():
    try:
        return FileTypeModel.installed()
    except StateError as error:
        pytest.skip(f"magika is not installed: {error.message}")


@pytest.mark.parametrize("to", ["fp16", "int8"])
def test_outputs_of_magika_are_those_of_the_program(magika, to):
    size = magika.begin_bytes + magika.end_bytes
    rng = np.random.default_rng(1)
    samples = [{"bytes": rng.integers(0, 257, (1, size), np.int32)} for _ in range(2)]
    inputs = {"model_inputs": [{"input_name": "bytes", "input_type": "int32", "input_shape": [1, size]}]}
    options = options_of(to, inputs)
    if to == "int8":
        options["calibration_data"] = samples
    wanted = compile_options_of(magika.path, to, Samples(samples), None, inputs)
    container = qaic.compile(magika.path, **options)
    with instrumented(magika.path, wanted) as program, qaic.Session(container.path) as session:
        for sample in samples:
            found = program.run(sample)
            for name, array in session.run(sample).items():
                assert found[name].tobytes() == array.tobytes()
