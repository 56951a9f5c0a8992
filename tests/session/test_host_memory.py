"""Private memory of activations, compared with the free memory before the program is loaded."""

import numpy as np
import pytest

import qaic
from child_process import run_script
from compiler_oracle import info, model_of, node
from session_models import save

WIDTH = 64
RUN = """
import sys
import numpy as np
import qaic
from qaic.errors import QaicError

try:
    with qaic.Session(sys.argv[1], num_activations=int(sys.argv[2])) as session:
        session.run({"x": np.ones((1, 64), np.float32)})
        print("ran")
except QaicError as error:
    print(type(error).__name__, error.code, error.context.get("fitting"), error.context.get("outputs"), error)
"""


@pytest.fixture
def path(tmp_path):
    weight = np.ones((WIDTH, WIDTH), np.float32)
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    proto = model_of(nodes, [info("x", [1, WIDTH])], [info("y", [1, WIDTH])], [("w", weight)])
    return qaic.compile(save(tmp_path, proto), output_dir=tmp_path / "qpc").path


def test_program_that_takes_too_much_is_refused_before_it_is_loaded(path, monkeypatch):
    outputs = 4 * WIDTH

    def answer(memory, activations):
        monkeypatch.setenv("QAIC_CPU_MEMORY", str(memory))
        return run_script(RUN, path, activations, device="cpu").stdout

    assert answer(2 * outputs, 2) == "ran\n"
    assert answer("any", 2) == "ran\n"
    assert answer("", 2) == "ran\n"
    refusal = answer(outputs, 2)
    assert refusal.startswith(f"DeviceMemoryError device.host_memory 1 {outputs} ")
    assert "there is room for 1 of 2 activations" in refusal
    assert "there is room for no activation" in answer(outputs - 1, 1)
    assert "QAIC_CPU_MEMORY is '5X'" in answer("5X", 1).replace('"', "'")
