"""Sentence encoders of the BERT family as ONNX models, from weights with their usual names.

The result is the mean over the tokens, normalized to length 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray

    Weights = Mapping[str, NDArray[np.float32]]


def encoder(weights: Weights, heads: int, tokens: int) -> onnx.ModelProto:
    """Build the model, from ``input_ids`` and ``attention_mask`` [1, tokens] to ``embedding`` [1, hidden]."""
    return _Builder(weights, heads, tokens).model()


def random_weights(layers: int, hidden: int, vocabulary: int = 512, positions: int = 128) -> Weights:
    """Create weights of an untrained model, with the sizes of a trained model."""
    rng = np.random.default_rng(6)

    def normal(*shape: int) -> NDArray[np.float32]:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    def norm(name: str) -> dict[str, NDArray[np.float32]]:
        return {f"{name}.weight": 1 + normal(hidden), f"{name}.bias": normal(hidden)}

    def dense(name: str, out: int, into: int) -> dict[str, NDArray[np.float32]]:
        return {f"{name}.weight": normal(out, into), f"{name}.bias": normal(out)}

    found = {
        "embeddings.word_embeddings.weight": normal(vocabulary, hidden),
        "embeddings.position_embeddings.weight": normal(positions, hidden),
        "embeddings.token_type_embeddings.weight": normal(2, hidden),
        **norm("embeddings.LayerNorm"),
    }
    for layer in range(layers):
        at = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            found |= dense(f"{at}.attention.self.{part}", hidden, hidden)
        found |= dense(f"{at}.attention.output.dense", hidden, hidden)
        found |= norm(f"{at}.attention.output.LayerNorm")
        found |= dense(f"{at}.intermediate.dense", 4 * hidden, hidden)
        found |= dense(f"{at}.output.dense", hidden, 4 * hidden)
        found |= norm(f"{at}.output.LayerNorm")
    return found


class _Builder:
    def __init__(self, weights: Weights, heads: int, tokens: int) -> None:
        self._weights = weights
        self._heads, self._tokens = heads, tokens
        self._hidden = weights["embeddings.word_embeddings.weight"].shape[1]
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, NDArray[Any]] = {}

    def model(self) -> onnx.ModelProto:
        words = self._add("Gather", self._weight("embeddings.word_embeddings.weight"), "input_ids")
        places = self._weights["embeddings.position_embeddings.weight"][: self._tokens]
        kinds = self._weights["embeddings.token_type_embeddings.weight"][0]
        x = self._add("Add", words, self._constant("embeddings.places", places + kinds))
        x = self._norm(x, "embeddings.LayerNorm")
        mask = self._add("Cast", "attention_mask", to=TensorProto.FLOAT)
        hidden = self._add("Sub", self._constant("one", np.float32(1)), mask)
        hidden = self._add("Mul", hidden, self._constant("far", np.float32(-10000)))
        hidden = self._add("Unsqueeze", hidden, self._constant("axes12", np.array([1, 2])))
        layer = 0
        while f"encoder.layer.{layer}.attention.self.query.weight" in self._weights:
            x = self._layer(f"encoder.layer.{layer}", x, hidden)
            layer += 1
        wide = self._add("Unsqueeze", mask, self._constant("axis2", np.array([2])))
        total = self._add(
            "ReduceSum", self._add("Mul", x, wide), self._constant("axis1", np.array([1])), keepdims=0
        )
        count = self._add("ReduceSum", mask, "axis1", keepdims=1)
        mean = self._add("Div", total, count)
        size = self._add("ReduceL2", mean, axes=[1], keepdims=1)
        self._nodes.append(helper.make_node("Div", [mean, size], ["embedding"]))
        shape = [1, self._tokens]
        graph = helper.make_graph(
            self._nodes,
            "encoder",
            [
                helper.make_tensor_value_info(name, TensorProto.INT64, shape)
                for name in ("input_ids", "attention_mask")
            ],
            [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [1, self._hidden])],
            [numpy_helper.from_array(np.asarray(array), name) for name, array in self._constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def _layer(self, at: str, x: str, hidden: str) -> str:
        width = self._hidden // self._heads
        split = self._constant("split", np.array([1, self._tokens, self._heads, width]))
        query, key, value = (
            self._add("Reshape", self._dense(f"{at}.attention.self.{part}", x), split)
            for part in ("query", "key", "value")
        )
        query = self._add("Transpose", query, perm=[0, 2, 1, 3])
        key = self._add("Transpose", key, perm=[0, 2, 3, 1])
        value = self._add("Transpose", value, perm=[0, 2, 1, 3])
        scores = self._add("MatMul", query, key)
        scores = self._add("Div", scores, self._constant("root", np.float32(width**0.5)))
        shares = self._add("Softmax", self._add("Add", scores, hidden), axis=-1)
        mixed = self._add("Transpose", self._add("MatMul", shares, value), perm=[0, 2, 1, 3])
        joined = self._add(
            "Reshape", mixed, self._constant("joined", np.array([1, self._tokens, self._hidden]))
        )
        x = self._add("Add", self._dense(f"{at}.attention.output.dense", joined), x)
        x = self._norm(x, f"{at}.attention.output.LayerNorm")
        inner = self._dense(f"{at}.intermediate.dense", x)
        erf = self._add("Erf", self._add("Div", inner, self._constant("root2", np.float32(2**0.5))))
        grown = self._add("Mul", inner, self._add("Add", erf, "one"))
        gelu = self._add("Mul", grown, self._constant("half", np.float32(0.5)))
        return self._norm(
            self._add("Add", self._dense(f"{at}.output.dense", gelu), x), f"{at}.output.LayerNorm"
        )

    def _dense(self, name: str, x: str) -> str:
        weight = np.ascontiguousarray(self._weights[f"{name}.weight"].T)
        product = self._add("MatMul", x, self._constant(f"{name}.weight", weight))
        return self._add("Add", product, self._weight(f"{name}.bias"))

    def _norm(self, x: str, name: str) -> str:
        parts = [self._weight(f"{name}.{part}") for part in ("weight", "bias")]
        return self._add("LayerNormalization", x, *parts, axis=-1, epsilon=1e-12)

    def _weight(self, name: str) -> str:
        return self._constant(name, self._weights[name])

    def _constant(self, name: str, array: NDArray[Any] | np.generic) -> str:
        self._constants[name] = np.asarray(array)
        return name

    def _add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        output = f"{operator}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [output], name=output, **attributes))
        return output
