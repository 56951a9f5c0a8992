"""Sizes that contradict each other: the node, and the size that a symbol needs.

Inference of onnx finds some contradictions. The engine finds more when it loads a graph with fixed sizes, and
many only when a node runs. A node that may have a conflict is therefore tested separately: the engine loads
it with the shapes of its operands, and runs it on zeros if the cost is low.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, shape_inference

from qaic import _core
from qaic.compiler.diagnostics.messages import engine_reason, engine_refused, refuse
from qaic.compiler.frontend.size_expressions import evaluate, symbols_in
from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.elem_types import BFLOAT16, FLOAT, FLOAT16, INT32, INT64, TABLE
from qaic.compiler.ir.graph_walk import (
    ONNX_DOMAINS,
    RANDOM,
    STANDARD_DOMAINS,
    attribute_of,
    node_key,
    producers,
    standard,
    subgraphs,
    values_read_by,
)
from qaic.compiler.ir.macs import macs_of
from qaic.compiler.ir.operand_ranks import infer_with_valid_ranks, rank_fault
from qaic.compiler.ir.shape_arithmetic import computed_values
from qaic.compiler.ir.value_info import collect_shapes, collect_types, may_follow_values
from qaic.compiler.passes.inlining import inline_functions
from qaic.compiler.passes.legalize.empty_operands import is_over_nothing
from qaic.compiler.passes.legalize.legalize_exports import resizes_from_the_end
from qaic.compiler.passes.legalize.legalize_padding import CONVOLUTIONS, is_padded_pool, legalize_padding
from qaic.compiler.passes.legalize.legalize_recurrent import legalize_recurrent
from qaic.compiler.passes.legalize.legalize_unchecked import fault
from qaic.compiler.passes.shape_inference import loop_shapes
from qaic.compiler.passes.shape_inference.attention_trials import heads_fault, trial_of
from qaic.compiler.passes.shape_inference.engine_shapes import inferred_alone, inferred_body
from qaic.errors import CompileError
from qaic.support.text import counted

Dims = tuple[int | str, ...]

#: operators of the standard set whose sizes inference does not fully compare
_ASKED: Final = frozenset(
    {
        *("AffineGrid", "Attention", "AveragePool", "CenterCropPad", "Clip", "Col2Im", "ConstantOfShape"),
        *("Conv", "ConvInteger", "ConvTranspose", "CumSum", "DFT", "DeformConv", "DepthToSpace"),
        *("DequantizeLinear", "Einsum", "GRU", "Gather", "GatherElements", "GatherND", "Gemm"),
        *("GroupNormalization", "InstanceNormalization", "LRN", "LSTM", "LayerNormalization", "LpPool"),
        *("MatMulInteger", "MaxPool", "MaxRoiPool", "MaxUnpool", "MelWeightMatrix"),
        *("NegativeLogLikelihoodLoss", "NonMaxSuppression", "PRelu", "Pad", "QLinearConv", "QLinearMatMul"),
        *("QuantizeLinear", "RMSNormalization", "RNN", "Range", "Reshape", "Resize", "ReverseSequence"),
        *("RoiAlign", "RotaryEmbedding", "STFT", "Scatter", "ScatterElements", "ScatterND"),
        *("SoftmaxCrossEntropyLoss", "SpaceToDepth", "Split", "TensorScatter", "Tile", "TopK", "Upsample"),
    }
)

#: operators whose operands after the first are lists; inference compares constant lists, but not their ranks
_TAKING_LISTS: Final = frozenset(
    {
        *("Expand", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
        *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Slice", "Squeeze", "Unsqueeze"),
    }
)

#: operator -> operands whose values determine the sizes of the results
_SIZED_BY_VALUES: Final = {
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "DFT": (1,),
    "Expand": (1,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Tile": (1,),
    "Upsample": (1,),
}

#: operators that accept zeros in their integer operands for all sizes
_TAKING_ZEROS: Final = frozenset(
    {"Gather", "GatherElements", "GatherND", "MaxUnpool", "Scatter", "ScatterElements", "ScatterND"}
)

#: operators of the engine that compare sizes only in a run, in all its releases
_COMPARED_IN_RUNS: Final = frozenset(
    {
        *("Attention", "BiasGelu", "BiasSoftmax", "CropAndResize", "DecoderMaskedMultiHeadAttention"),
        *("FastGelu", "FusedConv", "FusedGemm", "FusedMatMul", "GroupQueryAttention", "MatMulNBits", "MoE"),
        *("MultiHeadAttention", "QAttention", "QGemm", "QMoE", "RotaryEmbedding"),
        *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
    }
)

#: most elements and multiply-accumulates of a node that is run
_MOST_ELEMENTS: Final = 1 << 22
_MOST_MACS: Final = 1 << 26

#: most sizes tried for one symbol, and most nodes in all trials together
_MOST_SIZES: Final = 24
_MOST_NODES: Final = 20_000

_NARROW: Final = frozenset({FLOAT16, BFLOAT16})
_INTEGERS: Final = frozenset({INT32, INT64})
#: integer types, in which a division by zero traps
_DIVIDED: Final = frozenset(code for code, (name, _) in TABLE.items() if "int" in name)
#: attributes that kernels divide by
_DIVISORS: Final = frozenset({"blocksize", "group", "groups", "num_groups", "num_outputs", "strides"})
#: errors of inference in the engine; errors of types also concern ranks
_INFERENCE_ERRORS: Final = "(?:Shape|Type)InferenceError"
#: words that occur in reasons about sizes; the last three are parts that an index selects
_ABOUT_SIZES: Final = (
    r"(?i)(?<![a-z])(?:shapes?|dims?|dimensions?|ranks?|sizes?|lengths?|elements|channels|groups|images|rows)"
    r"(?![a-z])"
)
_MARKED_NUMBER: Final = r"@(\d+)@"


@dataclass(frozen=True, slots=True)
class Conflict:
    """A node whose operands do not fit, and the reason; `outer` is its node of the main graph."""

    node: onnx.NodeProto
    operands: Mapping[str, tuple[int, ...]]
    reason: str
    outer: onnx.NodeProto


@dataclass(slots=True)
class Sizes:
    """Sizes that the user gives for one specialization."""

    #: dims of the inputs in the model: numbers and symbols
    declared: Mapping[str, Dims]
    #: sizes of the symbols
    given: Mapping[str, int]
    #: name of the specialization; empty if there is only one
    specialization: str = ""

    def symbols(self) -> list[str]:
        """List the symbols of inputs that have a size."""
        texts = {dim: None for dims in self.declared.values() for dim in dims if isinstance(dim, str)}
        names = {
            name: None for text in texts for name in ((text,) if text in self.given else symbols_in(text))
        }
        return [name for name in names if name in self.given]


@dataclass(slots=True)
class SizeCheck:
    """Finds conflicts; similar nodes are checked once."""

    answers: dict[tuple[Any, ...], str] = field(default_factory=dict)
    #: true if nodes in branches of If must also fit; branches may never run
    in_branches: bool = False

    def find(self, found: onnx.ModelProto, outer: onnx.NodeProto | None = None) -> Conflict | None:
        """Find the first node that does not accept the sizes of its operands.

        The model has fixed input shapes, and its weights as inputs. `outer` is the node of the main graph
        that contains `found`, if any. In functions, values have names of their own.
        """
        types, shapes = collect_types(found), collect_shapes(found)
        refused: set[int] | None = None
        values: Mapping[str, NDArray[Any]] | None = None
        outputs = {value.name for value in found.graph.output}
        made = {name for node in found.graph.node if node.op_type != "Constant" for name in node.output[:]}
        calls = loop_shapes.called(found, lambda view: inferred_alone(inline_functions(view)))
        if calls is not None and (inside := self.find(calls, outer or calls.graph.node[0])) is not None:
            return inside
        loops = {node_key(node): body for node, body, _, _ in loop_shapes.bodies(found, inferred_body)}
        for at, node in enumerate(found.graph.node):
            if any(subgraphs(node)):
                body = loops.get(node_key(node))
                inner = loop_shapes.nested(found, node, inferred_body) if body is None else (body,)
                is_entered = self.in_branches or not standard(node, "If")
                for graph in inner if is_entered else ():
                    if (inside := self.find(graph, outer or node)) is not None:
                        return inside
                continue
            is_asked = _is_asked(node, shapes, made)
            results = set(node.output[:]) - {""}
            # A failed inference leaves a result open, unless the model declares its shape.
            is_open = not results <= shapes.keys()
            if not (is_asked or is_open or results & outputs):
                continue
            if not all(name in shapes for name in node.input if name):
                continue
            if is_open and not is_asked:
                refused = _refused(found) if refused is None else refused
                if at not in refused:
                    continue
            if values is None:
                values = computed_values(found)
            if reason := self._ask(found, node, types, shapes, values, is_asked=is_asked):
                operands = {name: shapes[name] for name in node.input if name}
                return Conflict(node, operands, reason, outer or node)
        return None

    def fits(self, view: onnx.ModelProto) -> bool:
        """Return True if a model without inferred shapes has no conflict."""
        try:
            return self.find(inferred_alone(edit.clone(view))) is None
        except CompileError:
            return False

    def _ask(
        self,
        found: onnx.ModelProto,
        node: onnx.NodeProto,
        types: Mapping[str, int],
        shapes: Mapping[str, tuple[int, ...]],
        values: Mapping[str, NDArray[Any]],
        *,
        is_asked: bool,
    ) -> str:
        """Return why the operands of a node do not fit; empty if they fit or if this is unknown."""
        if standard(node, "Reshape"):
            return _reshape_reason(node, shapes, values)
        if standard(node, "Conv"):
            return _conv_reason(node, shapes)
        if standard(node, "ConstantOfShape") and any(len(shapes[name]) != 1 for name in node.input if name):
            maker = producers(found.graph.node).get(node.input[0])
            if maker is not None and not standard(maker, "Constant"):  # The engine accepts constants.
                return f"a shape of {len(shapes[node.input[0]])} dims, expected 1"
        if node.op_type == "FusedConv" and _is_compared(node) and (reason := _conv_reason(node, shapes)):
            return reason
        if misfit := rank_fault(node, lambda name: (shapes[name],) if name in shapes else ()):
            return misfit
        names = list(dict.fromkeys(name for name in node.input if name))
        kinds = {name: types.get(name, 0) for name in names}
        if not all(kind in TABLE and TABLE[kind][1] for kind in kinds.values()):
            return ""
        constants = {name: values[name] for name in names if name in values}
        if reason := heads_fault(node, shapes) or fault(node, shapes, constants):
            return reason
        is_empty = is_over_nothing(node, lambda name: (shapes[name],) if name in shapes else ())
        if is_empty or resizes_from_the_end([node]) or is_padded_pool(node):
            # The engine may refuse them or end the process, because these nodes are rewritten later.
            return ""
        trial = trial_of(node, shapes)
        constants = {
            name: value
            for name, value in constants.items()
            if name not in trial.integers and name not in trial.shapes
        }
        results = () if trial.shapes else node.output
        shapes = {name: shapes[name] for name in (*names, *results) if name in shapes} | dict(trial.shapes)
        key = (
            node.op_type,
            node.domain,
            tuple(names.index(name) if name else -1 for name in node.input),
            tuple(bool(name) for name in node.output),
            tuple(attribute.SerializeToString() for attribute in node.attribute),
            tuple((kinds[name], shapes[name]) for name in names),
            tuple((name in constants and constants[name].tobytes()) for name in names),
        )
        if key not in self.answers:
            is_open = any(
                kinds[name] in _INTEGERS and name not in constants and name not in trial.integers
                for name in names
            )
            cost: float = sum(map(math.prod, shapes.values()))
            cost += _most_elements(node, shapes, constants)
            is_run = (
                cost <= _MOST_ELEMENTS
                and (macs_of(node, shapes) or 0) <= _MOST_MACS
                and (not is_open or standard(node, *_TAKING_ZEROS))
                and node.op_type not in RANDOM
                # Releases of the engine support different forms of its own operators.
                and (
                    node.domain in STANDARD_DOMAINS
                    or (_is_compared(node) and all(0 not in shapes[name] for name in names))
                )
                and not _may_trap(node, kinds.values())
            )
            alone = _alone(found, node, kinds, shapes, constants)
            is_known = not is_asked and _is_inferred(alone)
            legalize_recurrent(alone, lambda name: (shapes[name],))
            legalize_padding(alone, lambda name: (shapes[name],), CONVOLUTIONS)
            self.answers[key] = "" if is_known else _answer(alone, trial.integers, is_run=is_run)
        return self.answers[key]


def _most_elements(
    node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]], constants: Mapping[str, NDArray[Any]]
) -> float:
    """Return an upper bound for the elements of results whose sizes depend on values; 0 for other nodes.

    The engine allocates such results before it compares sizes.
    """
    places = _SIZED_BY_VALUES.get(node.op_type, ()) if node.domain in STANDARD_DOMAINS else ()
    names = [node.input[at] for at in places if at < len(node.input) and node.input[at] in constants]
    if not names:
        return 0
    factors = [abs(float(value)) for name in names for value in constants[name].flat]
    # The step of a range, or a scale, may be less than 1.
    large = [max(factor, 1 / factor) for factor in factors if factor > 0]
    return math.prod(shapes.get(node.input[0], ())) * math.prod(large)


def _is_compared(node: onnx.NodeProto) -> bool:
    """Return True for an operator of the engine that compares sizes only in a run."""
    return node.domain == "com.microsoft" and node.op_type in _COMPARED_IN_RUNS


def _may_trap(node: onnx.NodeProto, kinds: Iterable[int]) -> bool:
    """Return True if a node may end the process: it divides integers, or by an attribute that is 0."""
    if standard(node, "Trilu"):
        return True
    if any(kind in _DIVIDED for kind in kinds) and standard(node, "Div", "Mod"):
        return True
    return any(
        attribute.name in _DIVISORS and 0 in (attribute.ints or (attribute.i,))
        for attribute in node.attribute
    )


def _is_asked(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]], made: Collection[str]) -> bool:
    """Return True if inference may not compare all sizes of a node; `made` are results of nodes."""
    if standard(node, *_TAKING_LISTS):
        return any(name in made or len(shapes.get(name, (1,))) != 1 for name in node.input[1:] if name)
    if standard(node, "Transpose"):
        ranks = {len(attribute.ints) for attribute in node.attribute if attribute.name == "perm"}
        return bool(ranks) and len(shapes.get(node.input[0], ())) not in ranks
    return node.op_type in _ASKED if node.domain in STANDARD_DOMAINS else node.domain not in ONNX_DOMAINS


def _is_inferred(alone: onnx.ModelProto) -> bool:
    """Return True if inference finds the shapes of the results of a model of one node."""
    try:
        inferred = infer_with_valid_ranks(alone, strict_mode=True)
    except (shape_inference.InferenceError, RuntimeError, ValueError):
        return False
    return collect_shapes(inferred).keys() >= {value.name for value in alone.graph.output}


def _refused(found: onnx.ModelProto) -> set[int]:
    """Find the nodes of the main graph that inference refuses or leaves incomplete."""
    numbered = edit.clone(found)
    edit.clear_descriptions(numbered.graph)
    for value in numbered.graph.output:
        edit.clear_shape(value)
    for at, node in enumerate(numbered.graph.node):
        node.name = f"@{at}@"
    try:
        infer_with_valid_ranks(numbered, strict_mode=True, data_prop=may_follow_values(found))
    except (shape_inference.InferenceError, RuntimeError, ValueError) as error:
        return {int(number) for number in re.findall(_MARKED_NUMBER, str(error))}
    return set()


def _alone(
    found: onnx.ModelProto,
    node: onnx.NodeProto,
    kinds: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    constants: Mapping[str, NDArray[Any]],
) -> onnx.ModelProto:
    """Create a model of one node; floats are float32, for which the engine has most kernels."""
    narrow: Collection[int] = () if standard(node, "BitCast") else _NARROW
    inputs = [
        helper.make_tensor_value_info(name, FLOAT if kind in narrow else kind, shapes[name])
        for name, kind in kinds.items()
        if name not in constants
    ]
    tensors = [numpy_helper.from_array(_widened(value, narrow), name) for name, value in constants.items()]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([edit.clone_unnamed(node)], "node", inputs, outputs, tensors)
    return type(found)(ir_version=found.ir_version, opset_import=found.opset_import, graph=graph)


#: the engine's codes of errors
_FAIL, _INVALID_ARGUMENT, _RUNTIME_EXCEPTION, _NOT_IMPLEMENTED = 1, 2, 6, 9
#: codes with which an operator ends a run
_OF_OPERATORS: Final = frozenset({_FAIL, _INVALID_ARGUMENT, _RUNTIME_EXCEPTION})


def _widened(value: NDArray[Any], narrow: Collection[int]) -> NDArray[Any]:
    return value.astype("float32") if helper.np_dtype_to_tensor_dtype(value.dtype) in narrow else value


def _answer(model: onnx.ModelProto, integers: Mapping[str, int], *, is_run: bool) -> str:
    """Load and run a model of one node; return the reason why its operands do not fit.

    `integers` contains the value of all elements of some operands.
    """
    content, is_compared = model.SerializeToString(), _is_compared(model.graph.node[0])
    code, message = _core.try_model(content, None, ()) or (0, "")
    if code:
        # Other errors may be missing kernels of nodes that the compiler rewrites later.
        is_reason = re.search(_INFERENCE_ERRORS, message) or (
            is_compared and code in _OF_OPERATORS and _is_loaded(_without_sizes(model))
        )
        return engine_reason(message) if is_reason else ""
    if not is_run:
        return ""
    reason = ""
    outputs = [value.name for value in model.graph.output]
    for number in (0, 1):
        inputs = []
        for value in model.graph.input:
            tensor = value.type.tensor_type
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            element = np.array(integers.get(value.name, number), dtype).tobytes()
            dims = [dim.dim_value for dim in tensor.shape.dim]
            inputs.append((value.name, TABLE[tensor.elem_type][0], dims, element))
        try:
            code, message = _core.try_model(content, inputs, outputs) or (0, "")
        except ValueError:  # A trial has no inputs of these types.
            return ""
        if not code or not (code in _OF_OPERATORS or (code == _NOT_IMPLEMENTED and is_compared)):
            return ""
        reason = reason or engine_reason(message)
        # Older engines do not support all widths of packed weights that the compiler supports.
        if model.graph.node[0].op_type == "MatMulNBits" and not re.search(_ABOUT_SIZES, reason):
            return ""
    return reason


def _without_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model of one node without shapes and values."""
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    inputs = [helper.make_tensor_value_info(name, code, None) for name, code in types.items()]
    graph = helper.make_graph(model.graph.node, "node", inputs, model.graph.output)
    return type(model)(ir_version=model.ir_version, opset_import=model.opset_import, graph=graph)


def _is_loaded(model: onnx.ModelProto) -> bool:
    return _core.try_model(model.SerializeToString(), None, ()) is None


def _reshape_reason(
    node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, NDArray[Any]]
) -> str:
    if len(node.input) < 2 or node.input[0] not in shapes or node.input[1] not in values:
        return ""
    data, shape = shapes[node.input[0]], values[node.input[1]]
    if shape.ndim != 1:
        return f"a shape of {shape.ndim} dims, expected 1"
    wanted = shape.tolist()
    keeps_zeros = attribute_of(node, "allowzero", 0) != 0
    sizes = [
        data[at] if size == 0 and not keeps_zeros and at < len(data) else size
        for at, size in enumerate(wanted)
    ]
    count, rest = math.prod(data), math.prod(size for size in sizes if size != -1)
    fits = rest == count if -1 not in sizes else (rest and count % rest == 0)
    return "" if fits else f"the shape {wanted} does not take {counted(count, 'element')}"


def _conv_reason(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> str:
    if len(node.input) < 2 or not all(node.input[:2]):
        return ""
    data, weight = (shapes[name] for name in node.input[:2])
    group = attribute_of(node, "group", 1)
    kernel = attribute_of(node, "kernel_shape", list(weight[2:]))
    result = shapes.get(node.output[0], ())
    if len(data) != len(weight) or len(data) < 3:
        return f"{len(data)} and {len(weight)} dims"
    if group < 1 or weight[0] % group:
        return f"group {group} does not divide {counted(weight[0], 'output channel')}"
    if data[1] != weight[1] * group:
        return f"{counted(data[1], 'input channel')}, the kernel has {weight[1] * group}"
    if kernel != list(weight[2:]):
        return f"kernel_shape {kernel}, the kernel is {list(weight[2:])}"
    if len(node.input) > 2 and node.input[2] and shapes[node.input[2]] != (weight[0],):
        return f"a bias of {list(shapes[node.input[2]])}, expected [{weight[0]}]"
    return "the kernel is larger than the padded input" if any(size <= 0 for size in result[2:]) else ""


def refusal(conflict: Conflict, view: onnx.ModelProto, sizes: Sizes, check: SizeCheck) -> CompileError:
    """Build the error for a conflict: node, operands, and the sizes that symbols need.

    An operator of the engine may also be refused for an attribute or a missing kernel.
    """
    node = conflict.node
    name = node.name or next((output for output in node.output if output), "")
    if _is_compared(node) and not re.search(_ABOUT_SIZES, conflict.reason):
        return engine_refused(name, node.op_type, conflict.reason)
    what = f"node {name!r} ({node.op_type})"
    if sizes.specialization:
        what = f"specialization {sizes.specialization!r}, {what}"
    symbols = sizes.symbols()
    operands = ", ".join(f"{operand!r} is {list(shape)}" for operand, shape in conflict.operands.items())
    given = ", ".join(f"{symbol!r} = {sizes.given[symbol]}" for symbol in symbols)
    needed = _needed(conflict, view, sizes, check) if symbols else {}
    choices = [f"{symbol!r} = {size}" for symbol, size in needed.items()]
    if not symbols:
        fix = "the model fixes these sizes; export it with sizes that fit"
    elif needed:
        first = dict([next(iter(needed.items()))])
        where = "network_specialization_config, or " if sizes.specialization else ""
        what_fits = "one of these sizes" if len(needed) > 1 else "this size"
        fix = f"give {what_fits} with {where}onnx_define_symbol={first}"
    else:
        fix = "give other sizes with onnx_define_symbol, model_inputs or network_specialization_config"
    return refuse(
        what,
        code="contradicting_sizes",
        found=f"sizes that do not fit: {operands} ({conflict.reason}){f', with {given}' if given else ''}",
        expected=" or ".join(choices) or "sizes that the operator accepts",
        fix=fix,
        context={
            "node": name,
            "operator": node.op_type,
            "specialization": sizes.specialization,
            "given": {symbol: sizes.given[symbol] for symbol in symbols},
            "needed": needed,
        },
    )


def _needed(conflict: Conflict, view: onnx.ModelProto, sizes: Sizes, check: SizeCheck) -> dict[str, int]:
    """Find the nearest size of each symbol with which the node and all nodes before it have no conflict."""
    cut = _cut(view, conflict.outer)
    known = {size for shape in conflict.operands.values() for size in shape}
    known |= set(sizes.given.values())
    known |= {int(size) for tensor in _small_lists(cut, conflict.node) for size in tensor if size > 0}
    tries = max(_MOST_NODES // max(len(cut.graph.node), 1), 1)
    needed: dict[str, int] = {}
    for symbol in sizes.symbols():
        for size in _candidates(sizes.given[symbol], known):
            if not tries:
                return needed
            tries -= 1
            if _resize(cut, sizes, {**sizes.given, symbol: size}) and check.fits(cut):
                needed[symbol] = size
                break
    return needed


def _candidates(given: int, known: set[int]) -> list[int]:
    """List sizes that a symbol may need, the nearest first."""
    found = {given - 1, given + 1, *known}
    for one in known:
        for other in known:
            found.add(given + one - other)
            if other and given * one % other == 0:
                found.add(given * one // other)
    others = (size for size in found - {given} if size > 0)
    return sorted(others, key=lambda size: (abs(size - given), size))[:_MOST_SIZES]


def _small_lists(cut: onnx.ModelProto, node: onnx.NodeProto) -> Iterator[list[int]]:
    """Yield the constant shapes that a node reads."""
    for name, value in computed_values(cut).items():
        if name in node.input and value.dtype.kind == "i" and value.size <= 8:
            yield value.reshape(-1).tolist()


def _cut(view: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Copy the part of a model that computes a node of the main graph."""
    makers = producers(view.graph.node)
    own = makers[next(name for name in node.output if name)]
    needed: dict[int, onnx.NodeProto] = {}
    pending = [own]
    while pending:
        current = pending.pop()
        if id(current) in needed:
            continue
        needed[id(current)] = current
        pending.extend(makers[name] for name in values_read_by(current) if name in makers)
    cut = edit.clone(view)
    edit.remove_nodes(
        cut.graph, [at for at, current in enumerate(view.graph.node) if id(current) not in needed]
    )
    edit.set_outputs(cut.graph, ())
    for name in own.output:
        if name:
            edit.add_output(cut.graph, helper.make_empty_tensor_value_info(name))
    return cut


def _resize(view: onnx.ModelProto, sizes: Sizes, given: Mapping[str, int]) -> bool:
    """Set the sizes of the inputs of a model; returns False if a size is not valid."""
    for value in view.graph.input:
        declared = sizes.declared.get(value.name, ())
        for dim, text in zip(value.type.tensor_type.shape.dim, declared, strict=False):
            size = evaluate(text, given) if isinstance(text, str) else text
            if size is None or size < 0:
                return False
            dim.dim_value = size
    return True
