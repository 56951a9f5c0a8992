"""Memory of a comparison, compared with a normal run of the same program."""

import subprocess
import sys
import tempfile

import accuracy_models as models
from qaic import accuracy

_PROGRAM = """
import sys
from pathlib import Path

import numpy as np

import qaic
from onnx import TensorProto, helper, numpy_helper

rng = np.random.default_rng(4)
nodes, weights, last = [], [], "x"
for at in range(40):
    weights.append(numpy_helper.from_array(rng.uniform(0.9, 1.1, 512).astype(np.float32), f"w{at}"))
    nodes.append(helper.make_node("Mul", [last, f"w{at}"], [f"scaled{at}"]))
    nodes.append(helper.make_node("Sin", [f"scaled{at}"], [f"y{at}"]))
    last = f"y{at}"
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1024, 512]) for name in ("x", last)]
graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
samples = [{"x": rng.standard_normal((1024, 512)).astype(np.float32)} for _ in range(2)]
if sys.argv[1] == "compare":
    qaic.accuracy.compare(model, to="fp16", samples=samples)
else:
    with qaic.Session(model, convert_to_fp16=True) as session:
        for sample in samples:
            session.run(sample)
lines = Path("/proc/self/status").read_text().splitlines()
print(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
"""


def peak_kib(what):
    command = [sys.executable, "-c", _PROGRAM, what]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def test_values_of_a_graph_are_let_go_of_one_after_the_other():
    """A comparison keeps only some values in memory at a time.

    Eighty values of 2 MiB in two graphs would take 320 MiB, and their differences the same again. The
    additional memory of a comparison must be far below half of that.
    """
    assert peak_kib("compare") - peak_kib("run") < 160 * 1024


def test_programs_of_a_comparison_are_not_in_the_temporary_folder(monkeypatch):
    """The temporary folder can be in memory, so programs, even unfinished ones, are in the compile cache."""
    model, given = models.overflowing()[:2]
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", "/nonexistent")
        assert accuracy.compare(model, to="fp16", samples=given).precisions
