"""Whether a partition file fits the model: known nodes, and partitions that can run one after the other.

The CPU device runs the graph whole, so this only finds what a card would stumble over (compile-options §3.6).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from qaic.compiler.graph_walk import all_nodes
from qaic.compiler.refusal import listing, refuse

if TYPE_CHECKING:
    import onnx

    from qaic.options.partitions import PartitionConfig

_log = logging.getLogger("qaic.compiler")


def check_partitions(graph: onnx.GraphProto, config: PartitionConfig) -> None:
    """Compare the node lists of a partition file with a graph.

    Names the graph lacks are a warning: a compiler may have optimized those nodes away.

    Raises
    ------
    CompileError
        A partition needs a value from a later one.
    """
    place = {
        node: number for number, partition in enumerate(config.partitions) for node in partition.nodes or ()
    }
    unknown = sorted(place.keys() - {node.name for node in all_nodes(graph.node)})
    if unknown:
        _log.warning(
            "mdp_load_partition_config: the model has no %d of the nodes it lists: %s",
            len(unknown),
            listing(unknown),
        )
    makers = {name: node for node in graph.node if node.name in place for name in node.output if name}
    for node in graph.node:
        if node.name not in place:
            continue
        for name in node.input:
            maker = makers.get(name)
            if maker is None or place[maker.name] <= place[node.name]:
                continue
            earlier, later = (config.partitions[place[n.name]].name for n in (node, maker))
            raise refuse(
                f"node {node.name!r} of partition {earlier!r}",
                code="partition_order",
                found=f"the input {name!r} from node {maker.name!r} of the later partition {later!r}",
                expected="inputs from the same or an earlier partition",
                fix="order the partitions of mdp_load_partition_config as the values flow",
                context={"node": node.name, "partitions": [earlier, later]},
            )
