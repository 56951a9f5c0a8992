"""The option table: typed values, lookup by any name, and the JSON form that containers record.

The rows are declared in `rows`, a module for each section; the classes combine the sections. Names and
defaults are those of the rows. *Set* options are those that the user gave; *effective* options also include
their consequences. Only options that can change the container are recorded. A file is recorded as its digest,
so that the bytes depend on no path.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeAlias

from qaic.options.codecs.scalars import Json
from qaic.options.names import nearest, normalize
from qaic.options.rows.diagnostics import DiagnosticOptions
from qaic.options.rows.graph import GraphOptions
from qaic.options.rows.precision import PrecisionOptions
from qaic.options.rows.quantization import QuantizationOptions
from qaic.options.rows.run_step import RunStepOptions
from qaic.options.rows.scheduling import SchedulingOptions
from qaic.options.rows.session import RuntimeRows, SessionOptions
from qaic.options.spec import Effect, OptionSpec, Stage, rows_of

__all__ = ["CompileOptions", "OptionClass", "RunStepOptions", "RuntimeOptions", "SessionOptions", "specs_of"]


# A dataclass takes the fields of its last base first.
@dataclass(frozen=True, kw_only=True)
class CompileOptions(
    DiagnosticOptions, SchedulingOptions, QuantizationOptions, PrecisionOptions, GraphOptions
):
    """Options of the compiler. Ignored when the model is a compiled container."""


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions(RuntimeRows):
    """Options of loading and running."""

    def backend_options(self) -> dict[str, object]:
        """Return the values that may change after construction, by canonical name."""
        return {spec.name: getattr(self, spec.name) for spec in specs_of(RuntimeOptions) if spec.updatable}

    def records_latencies(self) -> bool:
        """Return True if the latencies of ``run`` calls are recorded."""
        return bool(self.enable_metrics or self.enable_profiling)

    def run_limit_s(self) -> float | None:
        """Return the time limit of a ``run`` call: ``submit_timeout``, and once more for each retry."""
        return float(self.submit_timeout * (1 + self.submit_num_retries)) if self.submit_timeout else None


OptionClass: TypeAlias = "type[SessionOptions | CompileOptions | RuntimeOptions | RunStepOptions]"


_ROWS: Final[dict[type, tuple[OptionSpec, ...]]] = {
    model: rows_of(model, stage)
    for model, stage in (
        (SessionOptions, Stage.SESSION),
        (CompileOptions, Stage.COMPILE),
        (RuntimeOptions, Stage.RUNTIME),
        (RunStepOptions, Stage.CLI),
    )
}


def specs_of(model: OptionClass) -> tuple[OptionSpec, ...]:
    """Return the rows that are declared in one of the classes above, in their order."""
    return _ROWS[model]


def index(rows: Iterable[OptionSpec]) -> dict[str, OptionSpec]:
    """Map every lookup key to its option.

    Raises ValueError if two options claim one key, or a key could never be looked up: the table is wrong.
    """
    found: dict[str, OptionSpec] = {}
    for row in rows:
        for key in row.keys:
            if normalize(key) != key:
                raise ValueError(f"the key {key!r} of the option {row.name} is not in its normal form")
            if found.setdefault(key, row) is not row:
                raise ValueError(f"the key {key!r} means two options: {found[key].name} and {row.name}")
    return found


#: Every option, in the order of the reference.
SPECS: tuple[OptionSpec, ...] = tuple(spec for rows in _ROWS.values() for spec in rows)


@cache
def _index() -> dict[str, OptionSpec]:
    # A session without options looks up none.
    return index(SPECS)


def find(key: str) -> OptionSpec | None:
    """Return the option that a user's spelling means, or None."""
    return _index().get(normalize(key))


def merge(weaker: Mapping[str, object], stronger: Mapping[str, object]) -> dict[str, object]:
    """Join two sets of options; an option of the second, however spelled, hides the one of the first.

    A value of None hides nothing.
    """
    hiding = {found.name for key, value in stronger.items() if value is not None and (found := find(key))}
    kept = {
        key: value for key, value in weaker.items() if not ((found := find(key)) and found.name in hiding)
    }
    return {**kept, **{key: value for key, value in stronger.items() if value is not None}}


#: options of other runtimes, in normal form -> options with the same effect
_PRECISIONS: Final = ("convert_to_fp16", "convert_to_quantize", "mxfp6_matmul")
_OF_OTHERS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("fp16", "float16", "half", "use_fp16", "enable_fp16"), ("convert_to_fp16",)),
    **dict.fromkeys(("int8", "quantize", "enable_int8"), ("convert_to_quantize",)),
    **dict.fromkeys(("precision", "dtype", "torch_dtype", "inference_precision"), _PRECISIONS),
    **dict.fromkeys(("device", "devices", "device_id", "provider", "providers"), ("dev_id",)),
    **dict.fromkeys(("batch_size", "batch", "max_batch_size"), ("batchsize",)),
    **dict.fromkeys(("num_cores", "cores", "num_streams"), ("aic_num_cores",)),
}


def names_meant(key: str) -> tuple[str, ...]:
    """Return the canonical names of the options that a wrong key may mean, the likeliest first.

    Canonical names are preferred, because an alias is often more similar to an unrelated option.
    """
    others = _OF_OTHERS.get(normalize(key), ())
    if others:
        return others
    near = nearest(key, [spec.name for spec in SPECS]) or nearest(key, _index())
    return () if near is None else (_index()[normalize(near)].name,)


def nearest_name(key: str) -> str | None:
    """Return the first of `names_meant`, or None."""
    return next(iter(names_meant(key)), None)


def flags_meant(key: str) -> tuple[str, ...]:
    """Return the texts of the flags that a wrong one may mean, without dashes, the likeliest first."""
    texts = (text for spec in SPECS if spec.flag is not None for text in spec.flag.texts)
    by_key = {normalize(text): text for text in texts if len(text) > 1}
    others = flags_of_others(key)
    near = None if others else nearest(key, by_key)
    return others or (_flags(names_meant(key)) if near is None else (by_key[near],))


def flags_of_others(key: str) -> tuple[str, ...]:
    """Return the flags, without dashes, that have the meaning of an option of another runtime."""
    return _flags(_OF_OTHERS.get(normalize(key), ()))


def _flags(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(flag.text for name in names if (flag := _index()[name].flag) is not None)


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

    `values` are typed values by canonical name; those that cannot change the container are left out.
    """
    return {
        spec.name: spec.codec.to_json(values[spec.name])
        for spec in _COMPILE
        # An empty list has no effect.
        if spec.in_container and values.get(spec.name) not in (None, (), {})
    }


def effective_options(options: CompileOptions) -> dict[str, Json]:
    """Return the JSON form of the effective options, by canonical name."""
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


def is_quantizing(options: CompileOptions) -> bool:
    """Return True if the options request quantization."""
    return bool(
        options.convert_to_quantize
        or options.load_profile is not None
        or options.external_quantization_file is not None
    )
