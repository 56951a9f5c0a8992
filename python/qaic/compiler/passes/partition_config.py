"""Checks of partition files against the model, and templates for them.

The CPU device runs the whole graph, so these checks find errors that otherwise only a card would report. A
node without a name has the name of its first result.
"""

import json
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import onnx

from qaic.compiler.diagnostics.messages import Survey, refuse
from qaic.compiler.ir.graph_walk import all_nodes, node_label, producers, standard, values_read_by
from qaic.compiler.ir.model import Context, Model, SideFile, compiler_pass
from qaic.compiler.passes.inlining import inline_small_functions
from qaic.options.files.partitions import PartitionConfig

#: operators that the card's compiler does not fold
_KEPT: Final = ("Constant", "DequantizeLinear", "Identity", "If", "Loop")


def check_partitions(graph: onnx.GraphProto, config: PartitionConfig, survey: Survey) -> None:
    """Compare the node lists of a partition file with a graph.

    The survey receives names that no node has, and nodes that a partition lists before a node whose result
    they read. The card's compiler refuses such a file, but a virtual card runs the whole graph. Raises
    CompileError if a partition needs a value from a later partition.
    """
    place = {
        node: number for number, partition in enumerate(config.partitions) for node in partition.nodes or ()
    }
    order = {
        node: number for partition in config.partitions for number, node in enumerate(partition.nodes or ())
    }
    unknown = sorted(place.keys() - {node_label(node) for node in all_nodes(graph.node)})
    for name in unknown:
        survey.note_refusal("names in mdp_load_partition_config that are not nodes", name)
    makers = producers(node for node in graph.node if node_label(node) in place)
    for node in graph.node:
        name = node_label(node)
        if name not in place:
            continue
        for value in node.input:
            maker = node_label(makers[value]) if value in makers else name
            if place[maker] == place[name] and order[maker] > order[name]:
                partition = config.partitions[place[name]].name
                survey.note_refusal(
                    f"nodes that {partition!r} lists before the nodes that compute their operands", name
                )
            if place[maker] > place[name]:
                earlier, later = (config.partitions[place[listed]].name for listed in (name, maker))
                raise refuse(
                    f"node {name!r} of partition {earlier!r}",
                    code="partition_order",
                    found=f"the input {value!r} from node {maker!r} of the later partition {later!r}",
                    expected="inputs from the same or an earlier partition",
                    fix="order the partitions of mdp_load_partition_config in the direction of the values",
                    context={"node": name, "partitions": [earlier, later]},
                )


def check_placement(
    model: onnx.ModelProto, constants: Iterable[str], config: PartitionConfig, survey: Survey
) -> None:
    """Report nodes that no partition lists, if every partition has a list of nodes.

    `model` is the user's model; `constants` are its weights outside the graph.
    """
    if any(partition.nodes is None for partition in config.partitions):
        return
    placed = {node for partition in config.partitions for node in partition.nodes or ()}
    # A list may contain the nodes of a function instead of its call.
    placed |= {node.rpartition("/")[0] for node in placed}
    graph = inline_small_functions(model).graph
    needed = {value.name for value in graph.output}
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed |= values_read_by(node)
    for node, is_constant in _with_constants(graph, constants):
        if not is_constant and needed.intersection(node.output) and node_label(node) not in placed:
            survey.note_refusal("nodes in no partition", node_label(node))


def node_names(model: onnx.ModelProto, constants: Iterable[str]) -> list[str]:
    """List the nodes that remain after the card's compiler expands small functions and folds constants.

    `model` is the user's model; `constants` are its weights outside the graph.
    """
    return [
        node_label(node)
        for node, is_constant in _with_constants(inline_small_functions(model).graph, constants)
        if not is_constant or standard(node, *_KEPT)
    ]


def _with_constants(
    graph: onnx.GraphProto, constants: Iterable[str]
) -> Iterator[tuple[onnx.NodeProto, bool]]:
    """Yield each node, with True if its results are constants."""
    known = {tensor.name for tensor in graph.initializer} | set(constants)
    for node in graph.node:
        is_constant = all(not name or name in known for name in node.input)
        if is_constant:
            known.update(node.output)
        yield node, is_constant


def write_template(names: list[str], cores: int, path: Path) -> None:
    """Write a partition file with one partition of one device that runs all nodes."""
    partition = {"name": "Partition0", "devices": [{"deviceId": 0, "numCores": cores}], "nodeList": names}
    text = json.dumps({"connections": [], "partitions": [partition]}, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


@compiler_pass(lambda context: context.options.mdp_dump_partition_config)
def dump_partition_template_pass(model: Model, context: Context) -> None:
    """Write the nodes of the model to a partition file that the user may edit."""
    path = context.options.mdp_dump_partition_config
    if path is not None:
        names = node_names(model.proto, model.weights)
        context.side_files.append(
            SideFile(path, partial(write_template, names, context.options.aic_num_cores))
        )


@compiler_pass(lambda context: context.options.mdp_load_partition_config)
def check_partitions_pass(model: Model, context: Context) -> None:
    """Refuse a partition file that does not fit the model."""
    config = context.options.mdp_load_partition_config
    if config is not None:
        check_partitions(inline_small_functions(model.proto).graph, config, context.survey)


@compiler_pass(lambda context: context.options.mdp_load_partition_config)
def check_placement_pass(model: Model, context: Context) -> None:
    """Report nodes of the user's model that a partition file does not contain."""
    config = context.options.mdp_load_partition_config
    if config is not None:
        check_placement(model.proto, model.weights, config, context.survey)
