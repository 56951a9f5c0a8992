"""The model that passes change."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import onnx

from qaic.compiler.ir.constants.weights import Weight, initializers_of, with_weights_as_inputs
from qaic.compiler.ir.custom_ops import Library
from qaic.compiler.ir.graph_edits import clone, drop_unneeded_nodes, import_opset, set_nodes
from qaic.compiler.ir.graph_walk import DEVICE_DOMAIN, constant_names
from qaic.compiler.ir.interface import Interface, Specialization, TensorSpec
from qaic.compiler.ir.value_info import Added, ValueInfo, describe_added
from qaic.options.files.specializations import SpecializationEntry


@dataclass(frozen=True, slots=True)
class OpsTable:
    """Known facts about the operations of a program."""

    #: entries of the descriptor, in the order of their numbers
    ops: Sequence[Mapping[str, Any]]
    #: most executions of all operations in a run
    executions: int


@dataclass(frozen=True, slots=True)
class RowTensor:
    """An output of the graph that is not an output of the program."""

    #: name and ONNX element type
    name: str
    elem_type: int
    #: shape in each specialization; one shape without specializations
    dims: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class RowUpdate:
    """State that is written by rows: numbers of an input, of its output, and of the tensors."""

    input: int
    output: int
    rows: int
    indices: int
    #: true if rows outside the state are ignored; otherwise they are an error
    skips_outside: bool = False
    #: true if the graph reads the previous value as MXINT8 blocks
    reads_blocks: bool = False


@dataclass(frozen=True, slots=True)
class StateRows:
    """Rows that the graph computes in place of the next values of state."""

    #: outputs of the graph, after those of the program
    tensors: tuple[RowTensor, ...]
    #: for each state, the rows as ``ScatterND`` writes them, and their indices
    updates: tuple[RowUpdate, ...]


@dataclass(slots=True)
class Model:
    """A graph, its weights, and the sets of shapes that it serves."""

    #: the graph without its large initializers
    proto: onnx.ModelProto
    #: the large initializers of the main graph, in the order in which they are stored
    weights: dict[str, Weight]
    #: engine libraries that its operators need
    libraries: Sequence[Library] = ()
    #: true if functions for operators of the card are left, whose bodies are rounded as one
    has_fused_functions: bool = False
    name: str = "unnamed"
    #: sizes of the symbols for each specialization, and their options
    symbol_sizes: Sequence[Mapping[str, int]] = ()
    requested: Sequence[SpecializationEntry] = ()
    #: dims of the inputs before symbols had sizes
    input_dims: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    #: The model with all types and shapes and with its weights as inputs, once for each set of shapes; of
    #: many sets only some. Empty while shapes are not known.
    specialized: list[onnx.ModelProto] = field(default_factory=list)
    #: the inputs and outputs; empty until shapes are known
    known: Interface | None = None
    #: facts about values after shape inference, and after all floats are float32
    facts: ValueInfo = field(default_factory=lambda: ValueInfo({}))
    #: its nodes before the passes, if operations are measured
    provenance: Callable[[onnx.ModelProto], dict[str, tuple[str, ...]]] | None = None
    #: for each set of shapes the finished program with inferred types and shapes, and what else identifies
    #: some; where operations are measured
    described: Sequence[Sequence[onnx.ModelProto]] = ()
    #: graph that the engine runs, if operations are measured
    operations: OpsTable | None = None
    #: rows that the graph computes instead of the next values of state
    state_rows: StateRows | None = None
    #: operators of the device's domain in the graph
    own_operators: Sequence[str] = ()

    @property
    def interface(self) -> Interface:
        """Inputs and outputs with all sets of shapes; known from shape inference on."""
        if self.known is None:
            raise AssertionError("the shapes of the model are not known yet")
        return self.known

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs."""
        return self.interface.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Outputs."""
        return self.interface.outputs

    @property
    def specializations(self) -> tuple[Specialization, ...]:
        """The sets of shapes where there are several, else empty."""
        return self.interface.specializations

    @property
    def library_paths(self) -> list[Path]:
        """Files of the engine libraries."""
        return [library.path for library in self.libraries]

    def copy_for_tools(self) -> onnx.ModelProto:
        """Copy the graph with each weight as an input, so that tools get its type and shape alone."""
        return with_weights_as_inputs(self.proto, self.weights)

    def constants(self) -> set[str]:
        """Collect the names of the constants of the main graph."""
        graph = self.proto.graph
        found = constant_names(graph) | {weight.name for weight in initializers_of(self.weights)}
        return found | {name for node in graph.node if node.op_type == "Constant" for name in node.output}

    def rewrite(self, rewriting: Callable[[onnx.ModelProto, Mapping[str, int]], Mapping[str, Added]]) -> bool:
        """Apply a rewriting that goes by element types to the graph and to its inferred forms.

        `rewriting` changes a model whose element types it is given, and returns the values that it added.
        Returns True if the graph was changed.
        """
        types = self.facts.types
        added = rewriting(self.proto, types)
        if not added:
            return False
        for specialized_model in self.specialized:
            rewriting(specialized_model, types)
            describe_added(specialized_model, added)
        new_types = {name: value.elem_type for name, value in added.items()}
        self.facts = ValueInfo(types | new_types, self.specialized)
        return True

    def set_device_nodes(self, nodes: Iterable[onnx.NodeProto], operators: Iterable[str]) -> None:
        """Replace the nodes of the graph, some by nodes of the device, and remove unused nodes."""
        set_nodes(self.proto.graph, nodes)
        drop_unneeded_nodes(self.proto.graph)
        import_opset(self.proto, DEVICE_DOMAIN, 1)
        self.own_operators = list(dict.fromkeys([*self.own_operators, *operators]))

    def learn_constants(self) -> None:
        """Take up the types and shapes of constants that were added."""
        for tensor in self.proto.graph.initializer:
            self.facts.types.setdefault(tensor.name, tensor.data_type)
            self.facts.shapes.setdefault(tensor.name, tuple(tensor.dims))
        for weight in self.weights.values():
            self.facts.types.setdefault(weight.name, weight.elem_type)
            self.facts.shapes.setdefault(weight.name, weight.dims)

    def copy(self) -> Self:
        """Copy the graph and its dependent data; the values of weights are shared."""
        return replace(self, proto=clone(self.proto), weights=dict(self.weights), facts=self.facts.copy())
