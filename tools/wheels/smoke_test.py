"""Use an installed wheel as a new user does; any difference from onnxruntime is an error.

python smoke_test.py in an empty folder, with the environment's commands on the path
"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import qaic


def write_model(path: Path) -> None:
    """Write a layer with a bias and an activation, which needs the compiler, the engine and the queues."""
    random = np.random.default_rng(0)
    initializers = [
        onnx.numpy_helper.from_array(random.standard_normal((16, 8), np.float32), "w"),
        onnx.numpy_helper.from_array(random.standard_normal(8, np.float32), "b"),
    ]
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])
    graph = helper.make_graph(nodes, "layer", [x], [y], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def run(*command: str) -> str:
    """Run a command of the package and return its output."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Compile with the command and with Python, run on a virtual and on an emulated card, and compare."""
    model = Path("model.onnx").absolute()
    write_model(model)
    x = np.linspace(-1, 1, 16, dtype=np.float32)[None]
    expected = onnxruntime.InferenceSession(model).run(None, {"x": x})[0]
    run("qaic-compile", f"-m={model}", "-aic-binary-dir=qpc")
    with qaic.Session("qpc") as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"], expected)
    with qaic.Session(str(model), convert_to_fp16=True) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], expected, atol=1e-2)
    info = run("openqaic", "info")
    if qaic.__version__ not in info:
        sys.exit(f"`openqaic info` does not say {qaic.__version__}: {info}")
    run("qaic-runner", "-t", "qpc", "-n", "3")
    print(f"openqaic {qaic.__version__} works on Python {platform.python_version()}, {platform.machine()}")


if __name__ == "__main__":
    main()
