"""Changes the batch size of a model (`batchsize`).

Exporters write the batch size of the traced example into the inputs and into the constant shapes of Reshape
nodes. This pass rewrites both. The inferred shapes of the outputs then show whether the model has the new
batch size.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper

from qaic.compiler.diagnostics.messages import listing, refuse, warn
from qaic.compiler.frontend import symbols
from qaic.compiler.ir.constants.in_graph import constant_reader
from qaic.compiler.ir.graph_edits import clear_dim, register_initializer, replace_input_with
from qaic.compiler.ir.graph_walk import SHAPE_READERS, FreshNames, standard, subgraphs
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.passes.shape_inference.infer_shapes import sizes_of
from qaic.errors import OptionConflictError
from qaic.options.table import CompileOptions
from qaic.support.text import counted

#: the batch that exporters trace with
_TRACED: Final = 1


def _batched_sizes(model: Model, options: CompileOptions) -> dict[str, int]:
    """Set the first dimension of each input to ``batchsize`` if it is 1 or a symbol.

    Returns the values of ``onnx_define_symbol``, and the sizes of symbols that mean the batch.
    """
    proto, batch = model.proto, options.batchsize
    values = dict(options.onnx_define_symbol)
    if batch is None:
        return values
    named: set[str] = set()
    traced: set[str] = set()
    found: list[str] = []
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        if not dims:
            continue
        found.append(f"{value.name} has {dims[0].dim_param or dims[0].dim_value}")
        if dims[0].dim_param:
            _define(values, dims[0].dim_param, batch)
            named.add(value.name)
        elif dims[0].dim_value == _TRACED:
            dims[0].dim_value = batch
            named.add(value.name)
            traced.add(value.name)
        elif dims[0].dim_value == batch:
            named.add(value.name)
    if not named:
        raise refuse(
            f"batchsize {batch}",
            code="not_batchable",
            found=f"no input whose first dimension is 1 or a symbol ({listing(found, 3)})",
            expected="at least one",
            fix="omit batchsize, or export the model with a symbolic first dimension",
        )
    _check_shapes(options, batch, named, len(proto.graph.input))
    if batch == _TRACED or not (traced or _claims_traced(proto)):
        return values
    claims = _claims_traced(proto)
    _rewrite_reshapes(proto, _batched(proto, named), batch)
    for value in proto.graph.output:
        if value.name in claims:
            clear_dim(value, 0)
    _require_batch(model, claims, batch, values)
    return values


def _check_shapes(options: CompileOptions, batch: int, named: set[str], inputs: int) -> None:
    """Refuse a shape with another first dimension than `batch`, which the inputs in `named` have."""
    for spec in options.model_inputs:
        is_batched = spec.input_name in named or (not spec.input_name and inputs == 1)
        if is_batched and spec.input_shape and spec.input_shape[0] != batch:
            what = f"input {spec.input_name!r}" if spec.input_name else "the input"
            raise OptionConflictError(
                f"batchsize is {batch}, but model_inputs gives {spec.input_shape[0]} to the first dimension "
                f"of {what}: omit batchsize, or give both the same size",
                code="option.batchsize",
                context={"options": ["batchsize", "model_inputs"]},
            )
    for name, dims in options.output_shapes.items():
        # Results such as that of NonZero have a first dimension that is not the batch.
        if batch != _TRACED and dims[:1] == (_TRACED,):
            text = f"output_shapes gives 1 to the first dimension of output {name!r}"
            warn("options.batch", f"batchsize is {batch}, but {text}: inferences with another size fail")


def _define(values: dict[str, int], symbol: str, batch: int) -> None:
    before = values.setdefault(symbol, batch)
    if before != batch:
        raise OptionConflictError(
            f"batchsize is {batch}, but onnx_define_symbol gives {symbol!r}, the first dimension of an "
            f"input, the value {before}: omit one of them",
            code="option.batchsize",
            context={"options": ["batchsize", "onnx_define_symbol"], "symbol": symbol},
        )


def _claims_traced(model: onnx.ModelProto) -> set[str]:
    """Return the outputs whose first dimension is 1 in the file."""
    return {
        value.name
        for value in model.graph.output
        if len(value.type.tensor_type.shape.dim) and value.type.tensor_type.shape.dim[0].dim_value == _TRACED
    }


def _batched(model: onnx.ModelProto, inputs: set[str]) -> set[str]:
    """Return the values computed from the data of the inputs, not only from their shapes."""
    batched = set(inputs)
    for node in model.graph.node:
        if standard(node, *SHAPE_READERS):
            continue
        reads = set(node.input)
        for inner in subgraphs(node):
            reads.update(name for held in inner.node for name in held.input)
        if reads & batched:
            batched.update(node.output)
    return batched


def _rewrite_reshapes(model: onnx.ModelProto, batched: set[str], batch: int) -> None:
    """Give each Reshape of batched data a new shape if its constant shape begins with the traced batch."""
    read, fresh = constant_reader(model.graph), FreshNames(model.graph)
    for node in model.graph.node:
        if not standard(node, "Reshape") or node.input[0] not in batched:
            continue
        given = read(node.input[1]) if len(node.input) > 1 else None
        if given is None or given.ndim != 1 or given.dtype != "int64" or given[:1].tolist() != [_TRACED]:
            continue
        # The shape is a new constant, because nodes without a batch may read the original one.
        shape = np.array([batch, *given[1:]], np.int64)
        name = fresh.make(node.input[1], "batch")
        register_initializer(model.graph, numpy_helper.from_array(shape, name))
        replace_input_with(node, 1, name)


def _require_batch(model: Model, claims: set[str], batch: int, values: Mapping[str, int]) -> None:
    """Refuse a model whose outputs do not have the batch."""
    view = model.copy_for_tools()
    symbols.substitute(view, values)
    inferred = symbols.infer(view)
    for value in inferred.graph.output:
        dims = value.type.tensor_type.shape.dim
        if value.name not in claims or not len(dims) or not dims[0].HasField("dim_value"):
            continue
        if dims[0].dim_value != batch:
            raise refuse(
                f"batchsize {batch}, output {value.name!r}",
                code="not_batchable",
                found=f"a first dimension of {dims[0].dim_value}, and inputs of {counted(batch, 'sample')}",
                expected=str(batch),
                fix="export the model with a symbolic first dimension",
                context={"tensor": value.name},
            )


@compiler_pass()
def bind_symbols_pass(model: Model, context: Context) -> None:
    """Set the size of the batch and of every symbolic dimension in each specialization."""
    options = context.options
    defined = _batched_sizes(model, options)
    model.requested = options.network_specialization_config or sizes_of(
        model.proto, options.dynamic_shape_input, defined
    )
    model.input_dims = {
        value.name: tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in model.proto.graph.input
    }
    model.symbol_sizes = symbols.bind(model.proto, defined, options.model_inputs, model.requested)
    if options.output_shapes:
        symbols.declare_outputs(model.proto.graph, options.output_shapes, model.symbol_sizes)
        symbols.substitute(model.proto, symbols.common_sizes(model.symbol_sizes))
