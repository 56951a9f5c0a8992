"""A 64-bit identity of a graph: operators, attributes, shapes and constants, but no names.

A profile belongs to one graph. Names do not count, because the entries carry them
anyway; a graph whose names changed loses entries and not its identity.
"""

import hashlib
from collections.abc import Mapping, Sequence

import onnx

from qaic.compiler.ir.constants.initializers import as_weight
from qaic.compiler.ir.constants.weights import Weight
from qaic.compiler.ir.graph_edits import plain
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS
from qaic.compiler.ir.interface import TensorSpec


def graph_hash(graph: onnx.GraphProto, weights: Mapping[str, Weight], inputs: Sequence[TensorSpec]) -> int:
    """Hash a main graph; reads every weight.

    `inputs` have their final shapes.
    """
    hashed = _Hash()
    numbers: dict[str, int] = {}
    for spec in inputs:
        numbers[spec.name] = len(numbers)
        hashed.text("input", str(spec.elem_type), *map(str, spec.dims))
    digests = {name: _constant(weight) for name, weight in weights.items()}
    hashed.graph(graph, numbers, digests)
    return hashed.number()


def _constant(weight: Weight) -> str:
    digest = hashlib.blake2b(f"{weight.elem_type} {weight.dims}".encode(), digest_size=16)
    for piece in weight.source.chunks():
        digest.update(piece)
    return digest.hexdigest()


class _Hash:
    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=8)

    def number(self) -> int:
        return int.from_bytes(self._digest.digest(), "big")

    def text(self, *words: str) -> None:
        """Add words; their lengths keep the borders apart."""
        for word in words:
            data = word.encode()
            self._digest.update(len(data).to_bytes(8, "little"))
            self._digest.update(data)

    def graph(self, graph: onnx.GraphProto, numbers: dict[str, int], constants: Mapping[str, str]) -> None:
        """Add a graph; `numbers` and `constants` hold what is visible from outside, and are not changed."""
        numbers, constants = dict(numbers), dict(constants)
        for tensor in graph.initializer:
            constants[tensor.name] = _constant(as_weight(tensor))
        for sparse in graph.sparse_initializer:
            constants[sparse.values.name] = hashlib.blake2b(
                sparse.SerializeToString(deterministic=True), digest_size=16
            ).hexdigest()
        for node in graph.node:
            domain = "" if node.domain in STANDARD_DOMAINS else node.domain
            self.text("node", domain, node.op_type)
            for name in node.input:
                self.text(_reference(name, numbers, constants))
            for attribute in sorted(node.attribute, key=lambda attribute: attribute.name):
                self._attribute(attribute, numbers, constants)
            for name in node.output:
                self.text("result" if name else "")
                if name:
                    numbers[name] = len(numbers)
                    constants.pop(name, None)
        for value in graph.output:
            self.text("output", _reference(value.name, numbers, constants))

    def _attribute(
        self, attribute: onnx.AttributeProto, numbers: dict[str, int], constants: Mapping[str, str]
    ) -> None:
        self.text("attribute", attribute.name, str(attribute.type))
        graphs = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
        if not graphs:
            content = plain(attribute).SerializeToString(deterministic=True)
            self.text(hashlib.blake2b(content, digest_size=16).hexdigest())
            return
        for graph in graphs:
            inner = dict(numbers)
            for value in graph.input:
                inner[value.name] = len(inner)
            self.graph(graph, inner, constants)


def _reference(name: str, numbers: Mapping[str, int], constants: Mapping[str, str]) -> str:
    if not name:
        return ""
    if name in numbers:
        return f"value {numbers[name]}"
    return f"constant {constants.get(name, 'unknown')}"
