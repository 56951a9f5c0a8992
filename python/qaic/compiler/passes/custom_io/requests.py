"""Requests to change inputs and outputs, derived from options."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from qaic.compiler.diagnostics.compile_error import listing
from qaic.compiler.diagnostics.record import warn
from qaic.compiler.frontend.interface import BFLOAT16_HARDWARE
from qaic.compiler.ir.context import Context, SideFile, compiler_pass
from qaic.compiler.ir.elem_types import BFLOAT16, CODES, FLOAT, FLOAT16, INT8, UINT8
from qaic.compiler.ir.interface import Interface, TensorSpec
from qaic.compiler.ir.model import Model
from qaic.errors import OptionError
from qaic.options.files.custom_io import CONVERSIONS, CustomIo
from qaic.options.table import CompileOptions
from qaic.support.program_names import RETAINED_STATE_SUFFIX

FILE: Final = "custom_io_list_file"
CACHE: Final = "mxint8_kv_cache"

#: suffix of outputs of sub-functions
_INNER_SUFFIX: Final = "_InternalRetainedState"

#: element type at the border by precision; MXINT8 blocks are bytes of uint8
BORDER_TYPES: Final = {
    "float": FLOAT,
    "float16": FLOAT16,
    "bfloat16": BFLOAT16,
    "int8": INT8,
    "mxint8": UINT8,
}

FLOATS: Final = frozenset({FLOAT, FLOAT16, BFLOAT16})


def requests_of(interface: Interface, options: CompileOptions) -> dict[str, CustomIo]:
    """Find the requests of the options.

    Returns them by name of the input or output, without those that change nothing. Raises OptionError with
    everything wrong if a request contradicts the model, or all entries name something else.
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
    """Return whether a request differs from the tensor."""
    if entry.layout == "NHWC":
        return True
    if entry.precision is None or entry.precision not in CONVERSIONS:
        return False
    return spec.elem_type in FLOATS and BORDER_TYPES[entry.precision] != spec.elem_type


def _matched(entries: Sequence[CustomIo], specs: Mapping[str, TensorSpec]) -> dict[str, CustomIo]:
    """Find the entries in the model; some unknown names are a warning, only unknown names an error."""
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
            f"{FILE}: none of its {len(missing)} names is an input or output of the model: "
            f"{listing(missing)}; the model has {listing(sorted(specs), 20)}",
            code="option.custom_io",
            context={"options": [FILE], "missing": missing},
        )
    if missing:
        warn(
            "custom_io.unknown_tensors",
            "%s: the model has no input or output %s",
            FILE,
            listing(missing),
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
    """Add the requests of `mxint8_kv_cache`; also return those that contradict the file."""
    states = [pair for pair in pairs if specs[pair[0]].elem_type in FLOATS and specs[pair[0]].dims]
    if not states:
        warn("custom_io.no_state", "%s: the model has no floating-point state to compress", CACHE)
    for name in (name for pair in states for name in pair):
        known = wanted.get(name, CustomIo(name))
        if known.precision not in {None, "mxint8"}:
            yield f"{name!r} has Precision {known.precision}, but {CACHE} sets mxint8; omit one of them"
        wanted[name] = replace(known, precision="mxint8", scale=None, offset=None)


def _unequal(
    wanted: Mapping[str, CustomIo], pairs: Sequence[tuple[str, str]], specs: Mapping[str, TensorSpec]
) -> Iterable[str]:
    """Return the outputs that would differ from the input they feed."""
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
    """Return the name of a tensor's new form."""
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
def dump_io_template_pass(model: Model, context: Context) -> bool:
    """Write the inputs and outputs to a custom I/O file that the user may edit."""
    path = context.options.dump_custom_io_config_template_file
    if path is not None:
        context.side_files.append(template_of(model.interface, path))
    return False
