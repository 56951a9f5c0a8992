"""Changes of inputs and outputs that options request.

Inputs and outputs of the program get the requested types and layouts. Added nodes convert between these and
the types and layouts of the model, with arithmetic in float32. The nodes quantize and dequantize without
``QuantizeLinear``, which rounds before it adds the offset, and which the engine would fuse with adjacent
operators. The device converts MXINT8 blocks; the graph has float32 instead.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import onnx
from onnx import helper

from qaic.compiler.diagnostics.messages import listing, refuse, warn
from qaic.compiler.frontend.specialization import BFLOAT16_HARDWARE, check_hardware
from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.constants.weights import Weight
from qaic.compiler.ir.elem_types import BFLOAT16, CODES, FLOAT, FLOAT16, INT8, UINT8
from qaic.compiler.ir.graph_walk import FreshNames, standard_version
from qaic.compiler.ir.interface import Interface, TensorSpec, check_size
from qaic.compiler.ir.model import Context, Model, SideFile, compiler_pass
from qaic.compiler.passes.emulation.mxint8 import packed_shape
from qaic.errors import OptionError
from qaic.options.files.custom_io import CONVERSIONS, CustomIo
from qaic.options.table import CompileOptions
from qaic.support.program_names import RETAINED_STATE_SUFFIX

FILE: Final = "custom_io_list_file"
CACHE: Final = "mxint8_kv_cache"

#: suffix of outputs of sub-functions
_INNER_SUFFIX: Final = "_InternalRetainedState"

#: precision -> element type of the input or output; MXINT8 blocks have type uint8
BORDER_TYPES: Final = {
    "float": FLOAT,
    "float16": FLOAT16,
    "bfloat16": BFLOAT16,
    "int8": INT8,
    "mxint8": UINT8,
}

FLOATS: Final = frozenset({FLOAT, FLOAT16, BFLOAT16})


def requests_of(interface: Interface, options: CompileOptions) -> dict[str, CustomIo]:
    """Return the requests of the options by name of the input or output, without those that change nothing.

    Raises OptionError with all problems if a request contradicts the model, or if the model has none of the
    named tensors.
    """
    specs = {spec.name: spec for spec in (*interface.inputs, *interface.outputs)}
    wanted = _matched(options.custom_io_list_file, specs)
    pairs = [
        (spec.name.removesuffix(RETAINED_STATE_SUFFIX), spec.name)
        for spec in interface.outputs
        if spec.name.endswith(RETAINED_STATE_SUFFIX)
        and spec.name.removesuffix(RETAINED_STATE_SUFFIX) in specs
    ]
    problems = list(_compressed(wanted, pairs, specs)) if options.mxint8_kv_cache else []
    problems += _problems(wanted, specs, options.aic_hw_version)
    problems += _unequal(wanted, pairs, specs)
    if problems:
        shown = problems[0] if len(problems) == 1 else "".join(f"\n  {text}" for text in problems)
        raise OptionError(
            f"{FILE}: {shown}", code="option.custom_io", context={"options": [FILE], "problems": problems}
        )
    return {name: entry for name, entry in wanted.items() if changes(specs[name], entry)}


def changes(spec: TensorSpec, entry: CustomIo) -> bool:
    """Return True if a request changes the type or the layout of a tensor."""
    if entry.layout == "NHWC":
        return True
    if entry.precision is None or entry.precision not in CONVERSIONS:
        return False
    return spec.elem_type in FLOATS and BORDER_TYPES[entry.precision] != spec.elem_type


def _matched(entries: Sequence[CustomIo], specs: Mapping[str, TensorSpec]) -> dict[str, CustomIo]:
    """Match entries with tensors; warn about unknown names, and refuse entries that are all unknown."""
    matched: dict[str, CustomIo] = {}
    missing: list[str] = []
    for entry in entries:
        name = next((name for name in _spellings(entry.name) if name in specs), None)
        if name is None:
            missing.append(entry.name)
        else:
            matched.setdefault(name, replace(entry, name=name))
    if missing and not matched:
        raise OptionError(
            f"{FILE}: found no name of an input or output of the model: "
            f"{listing(missing)}; the model has {listing(sorted(specs), 20)}",
            code="option.custom_io",
            context={"options": [FILE], "missing": missing},
        )
    if missing:
        warn(
            "custom_io.unknown_tensors",
            f"{FILE}: the model has no input or output {listing(missing)}",
            nodes=missing,
        )
    return matched


def _spellings(name: str) -> Iterable[str]:
    """Yield a name and its other possible spellings in the model."""
    yield name
    for suffix, other in ((RETAINED_STATE_SUFFIX, _INNER_SUFFIX), (_INNER_SUFFIX, RETAINED_STATE_SUFFIX)):
        if name.endswith(suffix):
            yield name.removesuffix(suffix) + other


def _problems(
    wanted: Mapping[str, CustomIo], specs: Mapping[str, TensorSpec], hardware: str | None
) -> Iterable[str]:
    for name, entry in wanted.items():
        spec = specs[name]
        found = f"{name!r} is {spec.dtype} {list(spec.dims)}"
        if entry.layout is not None and len(spec.dims) != 4:
            yield f"{found}; Layout needs a tensor of 4 dims; omit it"
        precision = entry.precision
        if precision is None:
            continue
        if spec.elem_type not in FLOATS:
            if CODES.get(precision) != spec.elem_type:
                yield f"{found}; integers keep their type, so omit Precision {precision}"
            elif entry.scale is not None:
                yield f"{found} already in the model; omit Scale and Offset"
        elif precision not in CONVERSIONS:
            yield f"{found}; Precision {precision} is not possible; expected one of {', '.join(CONVERSIONS)}"
        elif precision == "int8" and entry.scale is None:
            yield f"{found}; Precision int8 needs Scale and Offset: real = Scale x (q - Offset)"
        elif precision == "bfloat16" and hardware != BFLOAT16_HARDWARE:
            yield f"{found}; Precision bfloat16 needs aic_hw_version={BFLOAT16_HARDWARE}"
        elif precision == "mxint8" and (not spec.dims or 0 in spec.dims):
            yield f"{found}; Precision mxint8 needs a last dim, which is divided into blocks"


def _compressed(
    wanted: dict[str, CustomIo], pairs: Sequence[tuple[str, str]], specs: Mapping[str, TensorSpec]
) -> Iterable[str]:
    """Add the requests of `mxint8_kv_cache`; returns descriptions of requests that contradict the file."""
    states = [pair for pair in pairs if specs[pair[0]].elem_type in FLOATS and specs[pair[0]].dims]
    if not states:
        warn("custom_io.no_state", f"{CACHE}: the model has no floating-point state to compress")
    for name in (name for pair in states for name in pair):
        known = wanted.get(name, CustomIo(name))
        if known.precision not in {None, "mxint8"}:
            yield f"{name!r} has Precision {known.precision}, but {CACHE} sets mxint8; omit one of them"
        wanted[name] = replace(known, precision="mxint8", scale=None, offset=None)


def _unequal(
    wanted: Mapping[str, CustomIo], pairs: Sequence[tuple[str, str]], specs: Mapping[str, TensorSpec]
) -> Iterable[str]:
    """Describe the outputs of state whose form would differ from the form of their input."""
    for pair in pairs:
        if wanted.keys().isdisjoint(pair):
            continue
        given, kept = (_form(wanted.get(name), specs[name]) for name in pair)
        if given != kept:
            yield (
                f"input {pair[0]!r} would be {given} and {pair[1]!r}, its next value, {kept}; give both the "
                "same entry"
            )


def _form(entry: CustomIo | None, spec: TensorSpec) -> str:
    """Describe the new type and layout of a tensor."""
    precision = entry.precision if entry is not None and entry.precision is not None else spec.dtype
    text = "float32" if precision == "float" else precision
    if entry is not None and entry.scale is not None:
        text += f" (Scale {entry.scale}, Offset {entry.offset})"
    return f"{text} NHWC" if entry is not None and entry.layout == "NHWC" else text


_PRECISIONS: Final = {FLOAT: "float", FLOAT16: "float16", BFLOAT16: "bfloat16"}

_HEAD: Final = """\
# Custom I/O: the tensors of the program as the model has them. Keep the entries to change, edit
# them, and pass the file as custom_io_list_file (-custom-IO-list-file).
#   Layout:    NCHW or NHWC, of tensors with 4 dims
#   Precision: float, float16, bfloat16, mxint8, or int8 with Scale and Offset: real = Scale x (q - Offset)
"""


def template_of(interface: Interface, path: Path) -> SideFile:
    """Describe the template that a compilation writes."""
    text = "".join([_HEAD, *_side("inputs", interface.inputs), *_side("outputs", interface.outputs)])
    return SideFile(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _side(what: str, specs: Iterable[TensorSpec]) -> Iterable[str]:
    yield f"\n# {what}\n"
    for spec in specs:
        precision = _PRECISIONS.get(spec.elem_type)
        # A JSON string is also a valid YAML string, for any name.
        name = json.dumps(spec.name)
        if precision is None:
            yield f"\n# - IOName: {name}\n#   {spec.dtype} {list(spec.dims)}: integers keep their type\n"
            continue
        yield f"\n - IOName: {name}\n"
        if len(spec.dims) == 4:
            yield "   Layout: NCHW\n"
        yield f"   Precision: {precision}\n   # Scale: 1.0\n   # Offset: 0\n"


@compiler_pass(lambda context: context.options.dump_custom_io_config_template_file)
def dump_io_template_pass(model: Model, context: Context) -> None:
    """Write the inputs and outputs to a custom I/O file that the user may edit."""
    path = context.options.dump_custom_io_config_template_file
    if path is not None:
        context.side_files.append(template_of(model.interface, path))


#: permutation from NHWC, the requested layout, to NCHW, the layout of the model, and back
_TO_MODEL: Final = (0, 3, 1, 2)
_TO_BORDER: Final = (0, 2, 3, 1)

#: first operator set with the operators of conversions
_NEEDED: Final = {"int8": 11, "bfloat16": 13}

_LOWEST, _HIGHEST = -128.0, 127.0


class Converter:
    """Builds the nodes of all conversions of a model.

    Constants are added to the model; the caller inserts the nodes.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.fresh = FreshNames(model.graph)
        self.operators = standard_version(model)
        self._constants: dict[float, str] = {}

    def into_model(
        self, spec: TensorSpec, entry: CustomIo, border: str, inner: str
    ) -> Sequence[onnx.NodeProto]:
        """Create the nodes that convert input `border` to `inner`, the value that the model reads.

        Raises CompileError if the operator set of the model is too old.
        """
        add = self._begin(spec, entry)
        value = border
        if entry.precision == "int8" and entry.scale is not None and entry.offset is not None:
            value = add("Cast", value, to=FLOAT)
            if entry.offset:
                value = add("Sub", value, self.constant("offset", float(entry.offset)))
            value = add("Mul", value, self.constant("scale", entry.scale))
        elif entry.precision in {"float16", "bfloat16"}:
            value = add("Cast", value, to=FLOAT)
        if entry.precision is not None and spec.elem_type != FLOAT:
            value = add("Cast", value, to=spec.elem_type)
        if entry.layout == "NHWC":
            value = add("Transpose", value, perm=_TO_MODEL)
        return self._end(value, inner)

    def out_of_model(
        self, spec: TensorSpec, entry: CustomIo, inner: str, border: str
    ) -> Sequence[onnx.NodeProto]:
        """Create the nodes that convert `inner`, a value of the model, to output `border`."""
        add = self._begin(spec, entry)
        value = inner
        if entry.layout == "NHWC":
            value = add("Transpose", value, perm=_TO_BORDER)
        if entry.precision is not None and spec.elem_type != FLOAT:
            value = add("Cast", value, to=FLOAT)
        if entry.precision == "int8" and entry.scale is not None and entry.offset is not None:
            value = self._quantized(value, entry.scale, entry.offset)
        elif entry.precision == "float16":
            value = add("Cast", value, to=10)
        elif entry.precision == "bfloat16":
            value = add("Cast", value, to=BFLOAT16)
        return self._end(value, border)

    def _quantized(self, value: str, scale: float, offset: int) -> str:
        """Add the offset, round half to even and clip; NaN becomes the lowest value, as on the host."""
        add = self._writer.add
        value = add("Div", value, self.constant("scale", scale))
        if offset:
            value = add("Add", value, self.constant("offset", float(offset)))
        value = add("Round", value)
        lowest = self.constant("lowest", _LOWEST)
        above = add("Greater", value, lowest)
        value = add("Where", above, value, lowest)
        value = add("Min", value, self.constant("highest", _HIGHEST))
        return add("Cast", value, to=INT8)

    def constant(self, what: str, value: float) -> str:
        """Add a float32 constant; returns its name. Equal constants are stored once."""
        if value not in self._constants:
            name = self.fresh.make("custom_io", what)
            edit.register_initializer(self.model.graph, helper.make_tensor(name, FLOAT, [], [value]))
            self._constants[value] = name
        return self._constants[value]

    def _begin(self, spec: TensorSpec, entry: CustomIo) -> Callable[..., str]:
        """Return the function that adds a node; refuse a model whose operator set is too old."""
        self._writer = edit.NodeWriter(self.fresh, self.operators, spec.name, names_nodes=True)
        needed = _NEEDED.get(entry.precision or "", 1)
        if self.operators < needed:
            raise refuse(
                f"{spec.name!r} as {entry.precision}",
                code="old_operators",
                found=f"a model of operator set {self.operators}",
                expected=f"operator set {needed} or newer",
                fix=f"export the model with opset_version={max(needed, 13)}",
                context={"tensor": spec.name},
            )
        return self._writer.add

    def _end(self, value: str, wanted: str) -> list[onnx.NodeProto]:
        """Give the requested name to the result of the last node."""
        nodes = self._writer.nodes
        if not nodes:
            self._writer.add("Identity", value)
        edit.rename_output(nodes[-1], 0, wanted)
        return nodes


def _changed_interface(model: Model, options: CompileOptions) -> Interface:
    """Convert inputs and outputs as the options request, and return the new interface of the program.

    A weight that is an output gets another name.
    """
    interface = model.interface
    requests = requests_of(interface, options)
    if not requests:
        return interface
    _change_graph(model, requests, Converter(model.proto))
    return Interface(
        tuple(_changed(spec, requests.get(spec.name), "input") for spec in interface.inputs),
        tuple(_changed(spec, requests.get(spec.name), "output") for spec in interface.outputs),
        tuple(
            replace(
                specialization,
                inputs=_sizes(interface.inputs, specialization.inputs, requests),
                outputs=_sizes(interface.outputs, specialization.outputs, requests),
            )
            for specialization in interface.specializations
        ),
    )


def _change_graph(model: Model, requests: Mapping[str, CustomIo], converter: Converter) -> None:
    graph, facts = model.proto.graph, model.facts
    renamed = {name: converter.fresh.make(name, "of_model") for name in requests}
    _rename(model.proto, model.weights, renamed)
    before: list[onnx.NodeProto] = []
    after: list[onnx.NodeProto] = []
    specs = {spec.name: spec for spec in (*model.inputs, *model.outputs)}
    for values, nodes, is_input in ((graph.input, before, True), (graph.output, after, False)):
        for value in values:
            entry = requests.get(value.name)
            if entry is None:
                continue
            spec, inner = specs[value.name], renamed[value.name]
            _retype(value, spec, entry)
            facts.types[inner] = facts.types[value.name]
            if value.name in facts.shapes:
                facts.shapes[inner] = facts.shapes[value.name]
            facts.learn(value)
            if is_input:
                nodes.extend(converter.into_model(spec, entry, value.name, inner))
            else:
                nodes.extend(converter.out_of_model(spec, entry, inner, value.name))
    edit.set_nodes(graph, (*before, *graph.node, *after))


def _rename(model: onnx.ModelProto, weights: dict[str, Weight], names: Mapping[str, str]) -> None:
    """Rename values everywhere except in the declared inputs and outputs of the main graph."""
    edit.rename_values(model.graph.node, names)
    edit.rename_initializers(model.graph, names)
    if weights.keys() & names.keys():
        # The order does not change, because initializers are stored in it.
        held = [replace(weight, name=names.get(name, name)) for name, weight in weights.items()]
        weights.clear()
        weights.update((weight.name, weight) for weight in held)


def _retype(value: onnx.ValueInfoProto, spec: TensorSpec, entry: CustomIo) -> None:
    """Declare the requested type and dims of an input or output; symbolic dims stay."""
    tensor = value.type.tensor_type
    # The device decodes the blocks, so the graph has their values.
    tensor.elem_type = FLOAT if entry.precision == "mxint8" else _border_type(spec, entry)
    if entry.layout == "NHWC":
        edit.permute_shape(value, _TO_BORDER)
    if entry.precision == "mxint8" and not tensor.shape.dim[-1].HasField("dim_value"):
        raise OptionError(
            f"{FILE}: the last dim of {spec.name!r} is not the same in all specializations; Precision "
            "mxint8 divides it into blocks and needs one size",
            code="option.custom_io",
            context={"options": [FILE], "tensor": spec.name},
        )


def _border_type(spec: TensorSpec, entry: CustomIo) -> int:
    if entry.precision is None or not changes(spec, replace(entry, layout=None)):
        return spec.elem_type
    return BORDER_TYPES[entry.precision]


def _border_dims(dims: tuple[int, ...], entry: CustomIo | None) -> tuple[int, ...]:
    if entry is None:
        return dims
    if entry.layout == "NHWC":
        dims = tuple(dims[at] for at in _TO_BORDER)
    return packed_shape(dims) if entry.precision == "mxint8" else dims


def _changed(spec: TensorSpec, entry: CustomIo | None, kind: str) -> TensorSpec:
    if entry is None:
        return spec
    quantized = None
    if entry.scale is not None and entry.offset is not None:
        quantized = (entry.scale, entry.offset)
    columns = None
    if entry.precision == "mxint8":
        columns = _border_dims(spec.dims, replace(entry, precision=None))[-1]
    changed = replace(
        spec,
        elem_type=_border_type(spec, entry),
        dims=_border_dims(spec.dims, entry),
        model=spec,
        quantized=quantized,
        mxint8=columns,
    )
    return check_size(changed, kind)


def _sizes(
    specs: Sequence[TensorSpec], dims: Sequence[tuple[int, ...]], requests: Mapping[str, CustomIo]
) -> tuple[tuple[int, ...], ...]:
    return tuple(
        _border_dims(sizes, requests.get(spec.name)) for spec, sizes in zip(specs, dims, strict=True)
    )


@compiler_pass()
def apply_custom_io_pass(model: Model, context: Context) -> None:
    """Convert inputs and outputs to the requested types and layouts."""
    changed = _changed_interface(model, context.options)
    check_hardware((*changed.inputs, *changed.outputs), context.options.aic_hw_version)
    model.known = changed
