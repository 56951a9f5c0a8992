"""Programs with several sets of input shapes: the shapes of each, and the graph that serves all of them.

The graph exists once. A dimension that differs between the sets stays symbolic in it, so weights and prepared
kernels are shared; only the dims of inputs and outputs are written down per set.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qaic.compiler.diagnostics.compile_error import refuse
from qaic.compiler.frontend import symbols
from qaic.compiler.frontend.interface import read_edge
from qaic.compiler.ir.interface import Edge, Interface, Variant, check_size
from qaic.compiler.ir.pass_contract import Always
from qaic.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from qaic.compiler.ir.context import Context
    from qaic.compiler.ir.model import Model
    from qaic.options.files.specializations import Specialization

_OPTION = "network_specialization_config"


@dataclass(frozen=True, slots=True)
class Edges:
    """Inputs and outputs with the dims of one set of shapes."""

    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]


def copies(
    model: onnx.ModelProto, values: Sequence[Mapping[str, int]], entries: Sequence[Specialization]
) -> list[onnx.ModelProto]:
    """Make one copy of a model per set of symbols, all of whose inputs have fixed shapes.

    Parameters
    ----------
    model : onnx.ModelProto
        Skeleton that `symbols.bind` was applied to; a model with one set of shapes is its own copy.
    values : Sequence[Mapping[str, int]]
        What `symbols.bind` returned.
    entries : Sequence[Specialization]
        The specializations behind `values`.
    """
    if len(values) == 1:
        return [model]
    made = []
    for sizes, entry in zip(values, entries, strict=True):
        made.append(copy_with(model, sizes, entry))
    return made


def copy_with(model: onnx.ModelProto, sizes: Mapping[str, int], entry: Specialization) -> onnx.ModelProto:
    """Make the copy of a model for one set of symbols."""
    copy = type(model)()
    copy.CopyFrom(model)
    symbols.substitute(copy, sizes)
    symbols.require_static(copy.graph.input, entry.name, sizes)
    return copy


def read_edges(form: onnx.ModelProto, count: int) -> Edges:
    """Read the inputs and outputs of an inferred model; what follows `count` inputs are weights."""
    return Edges(
        tuple(read_edge(value, "input") for value in form.graph.input[:count]),
        tuple(read_edge(value, "output") for value in form.graph.output),
    )


def interface_of(sets: Sequence[Edges], entries: Sequence[Specialization]) -> Interface:
    """Make the interface of a program from its sets of shapes.

    Parameters
    ----------
    sets : Sequence[Edges]
        Inputs and outputs, one entry per set of shapes.
    entries : Sequence[Specialization]
        The specializations, where there are several sets.

    Raises
    ------
    CompileError
        An edge cannot be a buffer, or has another number of dims in another specialization.
    OptionError
        Two specializations have the same input shapes, so none of them could be chosen.
    """
    inputs = [edges.inputs for edges in sets]
    outputs = [edges.outputs for edges in sets]
    if len(sets) == 1:
        return Interface(inputs[0], outputs[0], ())
    variants = tuple(
        Variant(
            entry.name,
            entry.symbols,
            tuple(edge.dims for edge in inputs[number]),
            tuple(edge.dims for edge in outputs[number]),
        )
        for number, entry in enumerate(entries)
    )
    _refuse_equal(variants)
    return Interface(
        tuple(_largest(edges, entries, "input") for edges in zip(*inputs, strict=True)),
        tuple(_largest(edges, entries, "output") for edges in zip(*outputs, strict=True)),
        variants,
    )


def named(name: str, variants: tuple[Variant, ...], given: Sequence[str]) -> tuple[str, tuple[Variant, ...]]:
    """Name the graphs of a container: the program where there is one graph, else the sets of shapes.

    Parameters
    ----------
    name : str
        Name of the program.
    variants : tuple[Variant, ...]
        Sets of shapes where there are several.
    given : Sequence[str]
        Value of ``graph_names``; without any nothing changes.

    Raises
    ------
    OptionError
        There are more or fewer names than graphs.
    """
    if not given:
        return name, variants
    if len(given) != max(len(variants), 1):
        raise OptionError(
            f"graph_names has {len(given)} names ({', '.join(given)}), but the container has "
            f"{max(len(variants), 1)} graphs; give one name for each",
            code="option.graph_names",
            context={"options": ["graph_names"], "graphs": max(len(variants), 1)},
        )
    if not variants:
        return given[0], variants
    renamed = (replace(variant, name=own) for variant, own in zip(variants, given, strict=True))
    return name, tuple(renamed)


def _refuse_equal(variants: Sequence[Variant]) -> None:
    by_shapes: defaultdict[tuple[tuple[int, ...], ...], list[str]] = defaultdict(list)
    for variant in variants:
        by_shapes[variant.inputs].append(variant.name)
    for names in by_shapes.values():
        if len(names) > 1:
            raise OptionError(
                f"{_OPTION}: the specializations {names[0]!r} and {names[1]!r} give all inputs the same "
                "shapes; the shapes of an inference choose one, so drop one of them",
                code=f"option.{_OPTION}",
                context={"specializations": names[:2]},
            )


def _largest(edges: Sequence[Edge], entries: Sequence[Specialization], kind: str) -> Edge:
    """Take the largest of every dimension, so that one buffer has room for all."""
    first = edges[0]
    for edge, entry in zip(edges, entries, strict=True):
        if len(edge.dims) != len(first.dims):
            raise refuse(
                f"{kind} {first.name!r}",
                code="varying_rank",
                found=f"{len(first.dims)} dims in specialization {entries[0].name!r} and {len(edge.dims)} in "
                f"{entry.name!r}",
                expected="as many dims in each",
                fix="reshape it inside the model",
                context={"tensor": first.name},
            )
    dims = tuple(max(sizes) for sizes in zip(*(edge.dims for edge in edges), strict=True))
    return check_size(Edge(first.name, first.elem_type, dims), kind)


def fix_interface(model: onnx.ModelProto, forms: Sequence[onnx.ModelProto]) -> None:
    """Give the graph's inputs and outputs their final types and drop what only inference needed.

    A dimension gets a number where all forms agree. Of the others, those of inputs keep their symbols;
    those of outputs get no name, because nothing proves that a symbol of the file is right there.
    """
    graph = model.graph
    types = [{v.name: v.type for v in (*form.graph.input, *form.graph.output)} for form in forms]
    inputs = {value.name for value in graph.input}
    for value in (*graph.input, *graph.output):
        symbols_of_file = [dim.dim_param for dim in value.type.tensor_type.shape.dim]
        given = [form[value.name] for form in types]
        value.type.CopyFrom(given[0])
        for position, dim in enumerate(value.type.tensor_type.shape.dim):
            if len({form.tensor_type.shape.dim[position].dim_value for form in given}) > 1:
                dim.Clear()
                if value.name in inputs:
                    dim.dim_param = symbols_of_file[position]
    graph.ClearField("value_info")


class FixInterface(Always):
    """Give inputs and outputs their final types, and drop what only inference needed."""

    name = "fix-interface"

    def run(self, model: Model, context: Context) -> bool:
        """Change the model."""
        del context
        fix_interface(model.proto, model.forms)
        return True
