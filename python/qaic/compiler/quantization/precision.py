"""The precision of floats as a whole: what happens before rounding, and what to tell the user after it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qaic.compiler.diagnostics.compile_error import listing
from qaic.compiler.ir.constant_propagation import node_key
from qaic.compiler.ir.elem_types import BFLOAT16, DOUBLE, FLOAT16
from qaic.compiler.ir.float16_weights import Overflows
from qaic.compiler.ir.graph_walk import all_nodes
from qaic.compiler.ir.initializers import lift_float_constants
from qaic.compiler.ir.value_info import ValueFacts, collect_types, common_shapes
from qaic.compiler.passes.emulation.emulate_float16 import Rounder
from qaic.compiler.passes.emulation.upcast_float16 import mentions_half, widen
from qaic.compiler.passes.fold_batch_normalization import fold_batch_normalization
from qaic.compiler.quantization.precision_classes import (
    Classification,
    PrecisionClass,
    decide,
    has_node_options,
    needs_inner_nodes,
)
from qaic.options.models import CompileOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from qaic.compiler.calibration.profile import Profile
    from qaic.compiler.ir.weights import Weight

_log = logging.getLogger("qaic.compiler")

#: classes whose values are rounded
_ROUNDED = frozenset({PrecisionClass.FP16, PrecisionClass.BF16})


def needs_inlining(model: onnx.ModelProto, weights: dict[str, Weight], options: CompileOptions) -> bool:
    """Whether nodes inside model-local functions are treated by their precision."""
    return bool(model.functions) and (needs_inner_nodes(options) or mentions_half(model, weights))


def listed(options: CompileOptions) -> dict[str, str]:
    """Map the values that a precision file lists to what their nodes are to compute in."""
    lists = options.node_precision_info_file
    if lists is None:
        return {}
    return dict.fromkeys(lists.fp16, "fp16") | dict.fromkeys(lists.fp32, "fp32")


@dataclass(slots=True)
class PreparedFloats:
    """A model whose floats are float32, and what its nodes compute in.

    The passes between `prepare` and `round_floats` keep `facts` complete for the values they add.
    """

    model: onnx.ModelProto
    weights: dict[str, Weight]
    facts: ValueFacts
    options: CompileOptions
    decided: Classification
    overflows: Overflows

    @property
    def classes(self) -> dict[str, PrecisionClass]:
        """What each node computes in, by the name of its first output."""
        return self.decided.classes

    def decide(self, profile: Profile | None) -> None:
        """Classify the nodes, and make one node of what is one unit.

        Parameters
        ----------
        profile : Profile or None
            What is known about values; None when nothing is quantized.
        """
        if not self._is_open():
            return
        if profile is None:
            self.decided = decide(self.model, self.facts, self.options, None)
        else:
            self.decided = decide(
                self.model, self.facts, self.options, profile.tensors, external=profile.precisions
            )
        classes = self.decided.classes
        if any(chosen in _ROUNDED for chosen in classes.values()):
            _warn_untyped(self.model, self.facts.types)

        def are_one_unit(conv: onnx.NodeProto, norm: onnx.NodeProto) -> bool:
            same = classes.get(node_key(conv)) is classes.get(node_key(norm)) is PrecisionClass.FP16
            return same and {node_key(conv), node_key(norm)} <= self.decided.requested

        if self.decided.requested and fold_batch_normalization(self.model, self.weights, are_one_unit):
            self._learn_constants()

    def round_floats(self) -> None:
        """Round what has to be rounded; the last pass over the floats."""
        if any(chosen in _ROUNDED for chosen in self.classes.values()):
            Rounder(
                self.model, self.weights, self.facts, decided=self.decided, overflows=self.overflows
            ).run()

    def fold_for_integers(self) -> None:
        """Make one node of a convolution and its normalization, so that both have one range.

        Which kinds have which precision makes no difference, because a profile must fit whatever is asked of
        it later; single nodes are the same when a profile is made and when it is used.
        """
        lists = self.options.node_precision_info_file
        named = set() if lists is None else {*lists.fp16, *lists.fp32}

        def are_one_unit(conv: onnx.NodeProto, norm: onnx.NodeProto) -> bool:
            return not named & {node_key(conv), node_key(norm)}

        if fold_batch_normalization(self.model, self.weights, are_one_unit):
            self._learn_constants()

    def _is_open(self) -> bool:
        """Whether there is anything to decide."""
        return has_node_options(self.options) or bool(self.facts.narrow)

    def _learn_constants(self) -> None:
        """Take up the types and shapes of constants that were added."""
        for tensor in self.model.graph.initializer:
            self.facts.types.setdefault(tensor.name, tensor.data_type)
            self.facts.shapes.setdefault(tensor.name, tuple(tensor.dims))
        for weight in self.weights.values():
            self.facts.types.setdefault(weight.name, weight.elem_type)
            self.facts.shapes.setdefault(weight.name, weight.dims)


def prepare(
    model: onnx.ModelProto,
    weights: dict[str, Weight],
    forms: Sequence[onnx.ModelProto],
    options: CompileOptions,
    *,
    for_integers: bool = False,
) -> PreparedFloats:
    """Give all floats that are computed with the type float32; changes `model` and `weights`.

    Parameters
    ----------
    model : onnx.ModelProto
        Skeleton without model-local functions, unless nothing is done to nodes.
    weights : dict[str, Weight]
        Weights of the main graph.
    forms : Sequence[onnx.ModelProto]
        The same model with weights as inputs and the types and shapes of all values, once per set of shapes.
    options : CompileOptions
        Compile options.
    for_integers : bool
        Whether the graph is to be quantized, or measured for it.
    """
    # Which set of shapes it is makes no difference to a type.
    facts = ValueFacts(collect_types(forms[0]), common_shapes(forms))
    overflows = Overflows(clip=options.clip_fp16_constants)
    floats = PreparedFloats(model, weights, facts, options, Classification(), overflows)
    types = set(facts.types.values())
    if not for_integers and not has_node_options(options) and not types & {FLOAT16, BFLOAT16}:
        return floats
    if options.convert_to_fp16 and DOUBLE in types:
        _log.warning("convert_to_fp16: the model has float64 tensors; they are treated as float32")
    lift_float_constants(model)
    widen(model, weights, facts)
    if BFLOAT16 in facts.narrow.values() and options.aic_hw_version != "ai200":
        _log.warning(
            "the model computes in bfloat16, which the hardware family ai100 does not have; "
            "it computes in %s here (aic_hw_version=ai200 keeps bfloat16)",
            "float16" if options.convert_to_fp16 else "float32",
        )
    if for_integers:
        floats.fold_for_integers()
    return floats


def round_as_model(
    model: onnx.ModelProto, weights: dict[str, Weight], facts: ValueFacts, hardware: str | None
) -> Overflows:
    """Round what is float16 or bfloat16 in the model and nothing else; changes `model` and `weights`.

    Parameters
    ----------
    model, weights, facts
        A prepared model; `facts` stays as it is.
    hardware : str or None
        Hardware family, which decides about bfloat16.
    """
    facts = replace(facts, types=dict(facts.types), shapes=dict(facts.shapes))
    overflows = Overflows(clip=False)
    if facts.narrow:
        decided = decide(model, facts, CompileOptions(aic_hw_version=hardware), None)
        Rounder(model, weights, facts, decided=decided, overflows=overflows).run()
    return overflows


def report(overflows: Overflows) -> None:
    """Warn about constants beyond float16, once, after all of them were read."""
    if overflows.counts:
        total = sum(overflows.counts.values())
        became = (
            "the largest finite value (clip_fp16_constants=false makes them infinite)"
            if overflows.clip
            else "infinity (clip_fp16_constants is false)"
        )
        _log.warning(
            "%d constants are beyond the range of float16 and became %s: %s",
            total,
            became,
            listing(sorted(overflows.counts)),
        )


def _warn_untyped(model: onnx.ModelProto, types: dict[str, int]) -> None:
    kinds = {
        f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        for node in all_nodes(model.graph.node)
        for name in node.output
        if name and name not in types
    }
    if kinds:
        _log.warning(
            "float16 rounding: the result types of %s are not known; they stay unrounded",
            listing(sorted(kinds)),
        )
