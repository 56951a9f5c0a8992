"""The model that passes change, the contract of a pass, and the state that passes share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

import onnx

from qaic.compiler.diagnostics.messages import Survey
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.ir.constants.float16_weights import Overflows
from qaic.compiler.ir.constants.weights import Weight, initializers_of, with_weights_as_inputs
from qaic.compiler.ir.graph_edits import clone, drop_unneeded_nodes, import_opset, set_nodes
from qaic.compiler.ir.graph_walk import DEVICE_DOMAIN, constant_names, node_label
from qaic.compiler.ir.inlined_names import InlinedNames
from qaic.compiler.ir.interface import CustomOps, Interface, Library, Specialization, TensorSpec
from qaic.compiler.ir.precision import Classification
from qaic.compiler.ir.quantization import CalibrationProfile, QuantizationPlan
from qaic.compiler.ir.value_info import Added, ValueInfo, describe_added
from qaic.options.files.specializations import SpecializationEntry
from qaic.options.table import CompileOptions


@dataclass(frozen=True, slots=True)
class OpsTable:
    """Known facts about the operations of a program."""

    #: entries of the descriptor, in the order of their numbers
    ops: Sequence[Mapping[str, Any]]
    #: most executions of all operations in one run
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
    """State that is written by rows: indices of its input, its output, and the row tensors."""

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
    #: true if functions remain for operators of the card, whose bodies are rounded as one operation
    has_fused_functions: bool = False
    name: str = "unnamed"
    #: sizes of the symbols for each specialization, and their options
    symbol_sizes: Sequence[Mapping[str, int]] = ()
    requested: Sequence[SpecializationEntry] = ()
    #: dims of the inputs before symbols had sizes
    input_dims: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    #: the model with all types and shapes, and with its weights as inputs, once for each set of shapes, or
    #: for some of many sets; empty while shapes are unknown
    specialized: list[onnx.ModelProto] = field(default_factory=list)
    #: the inputs and outputs; empty until shapes are known
    known: Interface | None = None
    #: facts about values after shape inference, and after all floats became float32
    facts: ValueInfo = field(default_factory=lambda: ValueInfo({}))
    #: its nodes before the passes, if operations are measured
    provenance: Callable[[onnx.ModelProto], dict[str, tuple[str, ...]]] | None = None
    #: for each set of shapes, the finished and the earlier program with inferred types and shapes, if
    #: operations are measured
    described: Sequence[Sequence[onnx.ModelProto]] = ()
    #: graph that the engine runs, if operations are measured
    operations: OpsTable | None = None
    #: rows that the graph computes instead of the next values of state
    state_rows: StateRows | None = None
    #: the inferred model of each set of shapes, for the passes over state
    forms: Sequence[onnx.ModelProto] = ()
    #: operators of the device's domain in the graph
    own_operators: Sequence[str] = ()

    @property
    def interface(self) -> Interface:
        """Inputs and outputs with all sets of shapes, which shape inference determines."""
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
        """The sets of shapes if there are several, else empty."""
        return self.interface.specializations

    @property
    def library_paths(self) -> list[Path]:
        """Files of the engine libraries."""
        return [library.path for library in self.libraries]

    def copy_for_tools(self) -> onnx.ModelProto:
        """Copy the graph with each weight as an input, so that tools get only its type and shape."""
        return with_weights_as_inputs(self.proto, self.weights)

    def constants(self) -> set[str]:
        """Collect the names of the constants of the main graph."""
        graph = self.proto.graph
        found = constant_names(graph) | {weight.name for weight in initializers_of(self.weights)}
        return found | {name for node in graph.node if node.op_type == "Constant" for name in node.output}

    def rewrite(self, rewriting: Callable[[onnx.ModelProto, Mapping[str, int]], Mapping[str, Added]]) -> None:
        """Apply a rewriting that depends on element types to the graph and to its inferred forms.

        `rewriting` changes a model with the given element types, and returns the values that it added.
        """
        types = self.facts.types
        added = rewriting(self.proto, types)
        if not added:
            return
        for specialized_model in self.specialized:
            rewriting(specialized_model, types)
            describe_added(specialized_model, added)
        facts = replace(self.facts, types=types | {name: value.elem_type for name, value in added.items()})
        facts.original |= {name: value.original for name, value in added.items() if value.original}
        facts.transparent |= {value.original or name for name, value in added.items()}
        self.facts = facts

    def set_device_nodes(self, nodes: Iterable[onnx.NodeProto], operators: Iterable[str]) -> None:
        """Replace the nodes of the graph, some by nodes of the device, and remove unused nodes."""
        set_nodes(self.proto.graph, nodes)
        drop_unneeded_nodes(self.proto.graph)
        import_opset(self.proto, DEVICE_DOMAIN, 1)
        self.own_operators = list(dict.fromkeys([*self.own_operators, *operators]))

    def learn_constants(self) -> None:
        """Record the types and shapes of added constants."""
        for tensor in self.proto.graph.initializer:
            self.facts.types.setdefault(tensor.name, tensor.data_type)
            self.facts.shapes.setdefault(tensor.name, tuple(tensor.dims))
        for weight in self.weights.values():
            self.facts.types.setdefault(weight.name, weight.elem_type)
            self.facts.shapes.setdefault(weight.name, weight.dims)

    def copy(self) -> Self:
        """Copy the graph and its dependent data; the values of weights are shared."""
        return replace(self, proto=clone(self.proto), weights=dict(self.weights), facts=self.facts.copy())


#: lowest level of statistics that measures operations
OPERATIONS_LEVEL: Final = 70
#: reports why a rule does not change a node
Skip = Callable[[str, onnx.NodeProto], None]
#: makes a temporary folder
WorkFolder = Callable[[], AbstractContextManager[Path]]
#: writes a container that the caller loads immediately
WriteProgram = Callable[[Path, Model, CompileOptions], None]


@dataclass(frozen=True, slots=True)
class SideFile:
    """A file to write after the container."""

    #: its path; an existing file is replaced
    path: Path
    #: writes the content to its argument, a path that does not exist
    write: Callable[[Path], object]


@dataclass(slots=True)
class Context:
    """Options of one compilation, and the findings of its passes."""

    #: compile options; after the expansion of functions, their names of values are those of the graph
    options: CompileOptions
    #: shows the progress of the compilation
    progress: Progress
    #: writes a container to run during compilation, because passes do not import the writer
    write_program: WriteProgram
    #: makes folders for programs that run during compilation
    work_folder: WorkFolder
    #: operators of the user's libraries
    custom: CustomOps
    #: true if the graph will be quantized, or measured for quantization
    for_integers: bool
    #: constants out of the range of float16
    overflows: Overflows
    #: known parts of the model that a card does not support
    survey: Survey = field(default_factory=Survey)
    #: true if the user's model is valid, so that later errors are defects of the compiler
    is_checked: bool = False
    #: names of values in expanded functions, if options name some
    names: InlinedNames | None = None
    #: values inside quantized weights, to which options about floats do not apply
    exact: Sequence[str] = ()
    #: the weights of the model before its precision was changed
    given_weights: dict[str, Weight] = field(default_factory=dict)
    #: ranges and parameters of the values of the float graph, if it is quantized
    profile: CalibrationProfile | None = None
    #: precision of each node
    plan: Classification = field(default_factory=Classification)
    #: quantized values, their parameters, and the reasons for other values; None if no option needs them
    quantization: QuantizationPlan | None = None
    side_files: list[SideFile] = field(default_factory=list)

    def skip(self, reason: str, node: onnx.NodeProto) -> None:
        """Report why a rule does not change a node; `time_passes` shows it."""
        self.progress.skip(reason, node_label(node))

    @property
    def measures_operations(self) -> bool:
        """True if the program measures its operations one by one."""
        return self.options.stats_level >= OPERATIONS_LEVEL

    @property
    def moves_parts_of_state(self) -> bool:
        """True if state may be read and written in part."""
        return self.options.retained_state and not self.options.whole_caches


@dataclass(frozen=True, slots=True)
class Pass:
    """One step of a compilation; only ``compiler/pipeline.py`` defines its position in the order."""

    #: name in reports of times, in names of saved graphs, and in progress
    name: str
    #: Changes or analyzes the model. Raises CompileError if the model cannot become a program, and
    #: OptionError if an option contradicts it.
    run: Callable[[Model, Context], None]
    #: true if the options need the pass; `run` finds models that do not need it
    is_needed: Callable[[Context], object] = lambda _: True


def compiler_pass(
    is_needed: Callable[[Context], object] = lambda _: True,
) -> Callable[[Callable[[Model, Context], None]], Pass]:
    """Create a pass from a function, whose name is that of the pass followed by ``_pass``."""

    def made(run: Callable[[Model, Context], None]) -> Pass:
        return Pass(run.__name__.removesuffix("_pass").replace("_", "-"), run, is_needed)

    return made
