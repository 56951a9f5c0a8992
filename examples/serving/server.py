"""Write a Triton model repository with one model, and serve it until Ctrl-C.

pip install '.[serve]'
python examples/serving/server.py model_repository [HTTP_PORT GRPC_PORT]

The repository has the form of the vendor's backend for Triton: ``affine/config.pbtxt`` and
``affine/1/programqpc.bin``.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import qaic
import qaic.serving

CONFIG = """
name: "affine"
backend: "qaic"
dynamic_batching { max_queue_delay_microseconds: 500 }
parameters [
  { key: "set_size" value: { string_value: "4" } },
  { key: "no_of_activations" value: { string_value: "1" } }
]
"""


def model() -> onnx.ModelProto:
    """Build ``y = relu(x @ w)`` for batches of 8 rows."""
    weight = np.linspace(-1, 1, 16 * 4, dtype=np.float32).reshape(16, 4)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])],
        "affine",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [8, 16])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [8, 4])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main(repository: str, http_port: int | str = 8000, grpc_port: int | str = 8001) -> None:
    """Write the repository, and serve it."""
    folder = Path(repository) / "affine"
    (folder / "1").mkdir(parents=True, exist_ok=True)
    shutil.copy(qaic.compile(model()), folder / "1" / "programqpc.bin")
    (folder / "config.pbtxt").write_text(CONFIG)
    print(f"serving {repository}", flush=True)
    qaic.serving.serve(repository, http_port=int(http_port), grpc_port=int(grpc_port))


if __name__ == "__main__":
    main(*sys.argv[1:])
