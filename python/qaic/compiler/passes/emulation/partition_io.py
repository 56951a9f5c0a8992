"""Rounds values between partitions to MXINT8.

The CPU device runs the graph whole, so a value that a later partition reads is rounded in the graph, just
before the first node that reads it there. Partitions that share the work on each node exchange parts that
only the card's compiler knows; for those the option is recorded and changes nothing.
"""

from collections.abc import Iterable

import onnx

from qaic.compiler.diagnostics.record import warn
from qaic.compiler.ir.constants.propagation import constant_values, node_key
from qaic.compiler.ir.context import Context, compiler_pass
from qaic.compiler.ir.elem_types import FLOAT
from qaic.compiler.ir.graph_edits import append_nodes, replace_all_uses_with, set_nodes
from qaic.compiler.ir.graph_walk import FreshNames, values_read_by
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.opset_version import standard_version
from qaic.compiler.ir.precision_ops import standard
from qaic.compiler.passes.emulation.mx_fake_quantize import append_mxint8_rounding


@compiler_pass(lambda context: context.options.allow_mxint8_mdp_io)
def round_partition_traffic_pass(model: Model, context: Context) -> bool:
    """Round values that one partition sends to the next to MXINT8.

    Floats are not rounded to the formats of their nodes yet.
    """
    config = context.options.mdp_load_partition_config
    listed = [] if config is None else [set(partition.nodes or ()) for partition in config.partitions]
    if sum(map(bool, listed)) < 2:
        warn(
            "partitions.no_traffic",
            "allow_mxint8_mdp_io: no value passes between partitions, because fewer than two have a nodeList",
        )
        return False
    return _Traffic(model, listed).run()


class _Traffic:
    """Walks over the main graph, in the order of its nodes."""

    def __init__(self, model: Model, listed: list[set[str]]) -> None:
        graph = model.proto.graph
        self.graph = graph
        self.facts = model.facts
        self.numbers = {name: number for number, names in enumerate(listed) for name in names}
        self.constants = constant_values(graph, model.weights)
        self.fresh = FreshNames(graph)
        self.opset = standard_version(model.proto)
        #: value -> partition of its node
        self.places: dict[str, int] = {}
        #: values that are integers on the card, which are small already
        self.integers: set[str] = set()
        self.rounded: dict[str, str] = {}

    def run(self) -> bool:
        scratch = type(self.graph)()
        for node in list(self.graph.node):
            place = self._place(node)
            if place is not None:
                for name in sorted(self._crossing(node, place)):
                    if name not in self.rounded:
                        self.rounded[name] = self._round(scratch, name)
                    replace_all_uses_with([node], {name: self.rounded[name]})
                self.places.update(dict.fromkeys(node.output, place))
            if standard(node, "DequantizeLinear"):
                self.integers.update(node.output)
            append_nodes(scratch, [node])
        if self.rounded:
            set_nodes(self.graph, scratch.node)
        return bool(self.rounded)

    def _place(self, node: onnx.NodeProto) -> int | None:
        """Return the partition of a node: its own, else the last of those it reads from."""
        key = node_key(node)
        for name in (str(node.name), key, self.facts.original.get(key, key)):
            if name in self.numbers:
                return self.numbers[name]
        return max((self.places[name] for name in values_read_by(node) if name in self.places), default=None)

    def _crossing(self, node: onnx.NodeProto, place: int) -> Iterable[str]:
        """Find the floats that a node reads from another partition."""
        return {
            name
            for name in values_read_by(node)
            if self.places.get(name, place) != place
            and self.facts.types.get(name) == FLOAT
            and name not in self.constants
            and name not in self.integers
        }

    def _round(self, scratch: onnx.GraphProto, name: str) -> str:
        shape = self.facts.shapes.get(name)
        made = append_mxint8_rounding(scratch, name, opset=self.opset, shape=shape, fresh=self.fresh)
        self.facts.types[made] = FLOAT
        if shape is not None:
            self.facts.shapes[made] = shape
        if name in self.facts.narrow:
            self.facts.narrow[made] = self.facts.narrow[name]
        return made
