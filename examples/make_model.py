"""Write the small models that the guides use.

python examples/make_model.py model.onnx                 y = Relu(x W + b), float32 of shape (1, 16)
python examples/make_model.py --decoder decoder.onnx     a decoder of one layer with a cache
"""

import argparse

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, WIDTH = 32, 16


def dense() -> onnx.GraphProto:
    """Build a model with one input `x`, one output `y` and two weights."""
    generator = np.random.default_rng(0)
    weights = {
        "dense.weight": generator.standard_normal((16, 16), dtype=np.float32),
        "dense.bias": np.zeros(16, np.float32),
    }
    return helper.make_graph(
        [
            helper.make_node("Gemm", ["x", *weights], ["dense"]),
            helper.make_node("Relu", ["dense"], ["y"]),
        ],
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )


def decoder() -> onnx.GraphProto:
    """Build attention over a cache of embeddings, the input `past_key.0`, whose next value is an output.

    Position -1 is padding: it writes the last row of the cache, which no earlier position reads.
    """
    generator = np.random.default_rng(0)
    constants = {
        "embedding": generator.standard_normal((VOCABULARY, WIDTH), dtype=np.float32),
        "projection": generator.standard_normal((WIDTH, VOCABULARY), dtype=np.float32),
        "far": np.float32(-1e9),
        "zero": np.int64(0),
        "one": np.int64(1),
        "last": np.array([-1]),
        "first": np.array([0]),
    }
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["hidden"]),
        helper.make_node("Squeeze", ["position_ids", "first"], ["positions"]),
        helper.make_node("Unsqueeze", ["positions", "last"], ["rows"]),
        helper.make_node("Squeeze", ["hidden", "first"], ["written"]),
        helper.make_node("Squeeze", ["past_key.0", "first"], ["before"]),
        helper.make_node("ScatterND", ["before", "rows", "written"], ["after"]),
        helper.make_node("Unsqueeze", ["after", "first"], ["past_key.0_RetainedState"]),
        # Rows of the cache that a position can read: its own and all earlier ones.
        helper.make_node("Shape", ["after"], ["ctx_len"], start=0, end=1),
        helper.make_node("Squeeze", ["ctx_len", "first"], ["count"]),
        helper.make_node("Range", ["zero", "count", "one"], ["numbers"]),
        helper.make_node("LessOrEqual", ["numbers", "rows"], ["visible"]),
        helper.make_node("Transpose", ["after"], ["keys"], perm=[1, 0]),
        helper.make_node("MatMul", ["written", "keys"], ["products"]),
        helper.make_node("Where", ["visible", "products", "far"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "after"], ["mixed"]),
        helper.make_node("MatMul", ["mixed", "projection"], ["flat"]),
        helper.make_node("Unsqueeze", ["flat", "first"], ["logits"]),
    ]
    cache = [1, "ctx_len", WIDTH]
    return helper.make_graph(
        nodes,
        "decoder",
        [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "seq_len"]),
            helper.make_tensor_value_info("position_ids", TensorProto.INT64, [1, "seq_len"]),
            helper.make_tensor_value_info("past_key.0", TensorProto.FLOAT, cache),
        ],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "seq_len", VOCABULARY]),
            helper.make_tensor_value_info("past_key.0_RetainedState", TensorProto.FLOAT, cache),
        ],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )


def main() -> None:
    """Write a small model to a file."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("path", help="file to write")
    parser.add_argument("--decoder", action="store_true", help="a decoder with a cache")
    arguments = parser.parse_args()
    graph = decoder() if arguments.decoder else dense()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, arguments.path)


if __name__ == "__main__":
    main()
