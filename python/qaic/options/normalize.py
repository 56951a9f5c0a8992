"""Options as plain JSON values: what the container records and the cache is keyed by.

*Set* options are what the user asked for, *effective* ones what it amounts to. Only options that can change
the container count; a file is its digest, so that the bytes depend on no path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic.options.models import CompileOptions, specs_of
from qaic.options.spec import Effect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qaic.options.codecs.scalars import Json
    from qaic.options.spec import OptionSpec

_COMPILE = specs_of(CompileOptions)

#: Shown also when they have their defaults. The others are not, so that a container does not change with the
#: options that a later version learns.
_ALWAYS_EFFECTIVE = frozenset(
    {
        "aic_num_cores",
        "clip_fp16_constants",
        "combine_inputs",
        "combine_outputs",
        "convert_to_fp16",
        "model_inputs",
        "onnx_define_symbol",
    }
)


def set_options(values: Mapping[str, object]) -> dict[str, Json]:
    """Return the JSON form of the values that were given, by canonical name.

    Parameters
    ----------
    values
        Typed values by canonical name; those that cannot change the container are left out.
    """
    return {
        spec.name: spec.codec.to_json(values[spec.name])
        for spec in _COMPILE
        # An empty list asks for nothing.
        if spec.in_container and values.get(spec.name) not in (None, (), {})
    }


def effective_options(options: CompileOptions) -> dict[str, Json]:
    """Return the JSON form of what the options amount to, by canonical name."""
    effective: dict[str, Json] = {}
    for spec in _COMPILE:
        value = getattr(options, spec.name)
        if spec.in_container and (spec.name in _ALWAYS_EFFECTIVE or value != spec.default):
            effective[spec.name] = spec.codec.to_json(value)
    return effective


def recorded_only(options: CompileOptions) -> tuple[OptionSpec, ...]:
    """Return the options that differ from their defaults and have no effect on the CPU device."""
    return tuple(
        spec
        for spec in _COMPILE
        if spec.effect is Effect.RECORDED and getattr(options, spec.name) != spec.default
    )
