"""Write the small model that the README uses: y = Relu(x W + b), float32 of shape (1, 16).

python examples/make_model.py model.onnx
"""

import argparse

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def main() -> None:
    """Write a model with one input `x`, one output `y` and two weights."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("path", help="file to write")
    generator = np.random.default_rng(0)
    weights = {
        "dense.weight": generator.standard_normal((16, 16), dtype=np.float32),
        "dense.bias": np.zeros(16, np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", *weights], ["dense"]),
            helper.make_node("Relu", ["dense"], ["y"]),
        ],
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, parser.parse_args().path)


if __name__ == "__main__":
    main()
