"""Inputs of any size up to a bound (`dynamic_shape_input`).

A container lists the shapes it allows, so every size becomes one set of shapes, the largest first. Where the
shapes of the outputs follow from the symbols by name, nothing is inferred per set.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import onnx

from qaic.compiler.diagnostics.compile_error import listing, refuse
from qaic.compiler.frontend import specialization, symbols
from qaic.compiler.frontend.size_expressions import evaluate, symbols_in
from qaic.compiler.ir.constants.weights import Weight, with_weights_as_inputs
from qaic.compiler.ir.graph_edits import clear_shape
from qaic.compiler.ir.interface import Interface, TensorSpec
from qaic.compiler.ir.model import Model
from qaic.compiler.passes.shape_inference.engine_shapes import inferred
from qaic.errors import OptionError
from qaic.options.files.specializations import SpecializationEntry

#: most sets of shapes, because the container lists them all
MAX_SETS: Final = 16_384

#: most sets of shapes that are inferred one by one
_FEW: Final = 16

_OPTION: Final = "dynamic_shape_input"


def sizes_of(
    model: onnx.ModelProto, names: Sequence[str], bounds: Mapping[str, int]
) -> tuple[SpecializationEntry, ...]:
    """List the sets of sizes that the dynamic inputs of a model may have.

    There are no sets without `names` of dynamic inputs. `bounds` are the largest sizes. Raises OptionError if
    a name is no input, an input has no symbol, a symbol has no bound, or there are too many sets.
    """
    if not names:
        return ()
    inputs = {value.name: value for value in model.graph.input}
    found: dict[str, int] = {}
    for name in names:
        if name not in inputs:
            raise _error(f"{_OPTION}: the model has no input {name!r}; it has {listing(list(inputs), 20)}")
        written = [dim.dim_param for dim in inputs[name].type.tensor_type.shape.dim if dim.dim_param]
        own = list(dict.fromkeys(symbol for text in written for symbol in _symbols_in(text, bounds)))
        if not own:
            raise _error(
                f"{_OPTION}: input {name!r} has no symbolic dimension; leave it out, or export the model "
                "with one"
            )
        for symbol in own:
            if symbol not in bounds:
                raise _error(
                    f"{_OPTION}: the symbol {symbol!r} of input {name!r} has no bound, and a container has "
                    f"buffers of fixed size; give its largest value, e.g. "
                    f"onnx_define_symbol={{{symbol!r}: 128}}"
                )
            found[symbol] = bounds[symbol]
    count = math.prod(found.values())
    if count > MAX_SETS:
        shown = " x ".join(f"{symbol} {size}" for symbol, size in found.items())
        raise _error(
            f"{_OPTION}: {count} combinations of sizes ({shown}), expected at most {MAX_SETS}; give "
            "smaller bounds with onnx_define_symbol, or list the sizes in network_specialization_config"
        )
    ranges = [range(size, 0, -1) for size in found.values()]
    return tuple(
        SpecializationEntry(
            ",".join(f"{symbol}={size}" for symbol, size in zip(found, sizes, strict=True)),
            dict(zip(found, sizes, strict=True)),
        )
        for sizes in itertools.product(*ranges)
    )


def _symbols_in(text: str, bounds: Mapping[str, int]) -> list[str]:
    """List the symbols of a dimension; a dimension with its own bound is a symbol, whatever its text."""
    return [text] if text in bounds else sorted(symbols_in(text))


def infer_specializations(given: Model) -> tuple[list[onnx.ModelProto], Interface]:
    """Infer a model for its sets of shapes.

    Returns inferred models, of many sets only the first, the middle and the last one, and the interface with
    the dims of every set.
    """
    model, weights, libraries = given.proto, given.weights, given.library_paths
    sizes, entries = given.symbol_sizes, given.requested
    count = len(model.graph.input)
    if len(sizes) <= _FEW:
        specialized = [inferred(form, weights, libraries) for form in specialization.copies(given)]
        return specialized, specialization.interface_of(
            [specialization.read_specs(f, count) for f in specialized], entries
        )
    chosen = (0, len(sizes) // 2, len(sizes) - 1)
    specialized = [
        inferred(specialization.copy_with(model, sizes[at], entries[at]), weights, libraries) for at in chosen
    ]
    known = [specialization.read_specs(specialized_model, count) for specialized_model in specialized]
    named = _named_specs(model, weights, known[0], sizes[0])
    if named is not None and all(
        _sized(named, sizes[at]) == specs for at, specs in zip(chosen, known, strict=True)
    ):
        return specialized, specialization.interface_of([_sized(named, values) for values in sizes], entries)
    forms = (
        inferred(specialization.copy_with(model, values, entry), weights, libraries)
        for values, entry in zip(sizes, entries, strict=True)
    )
    specs = [specialization.read_specs(form, count) for form in forms]
    return specialized, specialization.interface_of(specs, entries)


#: specs of inputs or outputs, each with dims that are numbers or symbols
_NamedSpecs = Sequence[tuple[TensorSpec, tuple[int | str, ...]]]


def _sized(named: Sequence[_NamedSpecs], sizes: Mapping[str, int]) -> Interface:
    inputs, outputs = (
        tuple(
            replace(spec, dims=tuple(_size(dim, sizes) if isinstance(dim, str) else dim for dim in dims))
            for spec, dims in side
        )
        for side in named
    )
    return Interface(inputs, outputs)


def _size(text: str, sizes: Mapping[str, int]) -> int:
    size = evaluate(text, sizes)
    if size is None or size < 0:
        raise refuse(
            f"dimension {text!r}",
            code="unbound_dimension",
            found="no size" if size is None else f"a size of {size}",
            expected="a size of at least 0 for all sizes of its symbols",
            fix="list its sizes in network_specialization_config",
            context={"symbol": text, "option": _OPTION},
        )
    return size


def _named_specs(
    model: onnx.ModelProto, weights: dict[str, Weight], first: Interface, given: Mapping[str, int]
) -> list[_NamedSpecs] | None:
    """Infer the dims of all specs as numbers and symbols; None if one is neither.

    Inference invents symbols for unknown dims, so only symbols of `given` count.
    """
    view = with_weights_as_inputs(model, weights)
    for value in view.graph.output:
        # Declarations in the file may hold for only one size.
        clear_shape(value)
    found = symbols.infer(view).graph
    values = {value.name: value for value in (*found.input, *found.output)}
    sides: list[_NamedSpecs] = []
    for side in (first.inputs, first.outputs):
        named = []
        for spec in side:
            dims = [
                dim.dim_value if dim.HasField("dim_value") else dim.dim_param
                for dim in values[spec.name].type.tensor_type.shape.dim
            ]
            symbolic = {dim for dim in dims if isinstance(dim, str)}
            if len(dims) != len(spec.dims) or any(evaluate(dim, given) is None for dim in symbolic):
                return None
            named.append((spec, tuple(dims)))
        sides.append(named)
    return sides


def _error(message: str) -> OptionError:
    return OptionError(
        message, code=f"option.{_OPTION}", context={"options": [_OPTION, "onnx_define_symbol"]}
    )
