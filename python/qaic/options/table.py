"""Lookup of options by any of their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qaic.options.models import CompileOptions, RunStepOptions, RuntimeOptions, SessionOptions, specs_of
from qaic.options.names import nearest, normalize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from qaic.options.spec import OptionSpec


def index(rows: Iterable[OptionSpec]) -> dict[str, OptionSpec]:
    """Map every lookup key to its option.

    Raises
    ------
    ValueError
        Two options claim one key, or a key could never be looked up: the table is wrong.
    """
    found: dict[str, OptionSpec] = {}
    for row in rows:
        for key in row.keys:
            if normalize(key) != key:
                message = f"the key {key!r} of the option {row.name} is not in its normal form"
                raise ValueError(message)
            if found.setdefault(key, row) is not row:
                message = f"the key {key!r} means two options: {found[key].name} and {row.name}"
                raise ValueError(message)
    return found


#: Every option, in the order of the reference.
SPECS: tuple[OptionSpec, ...] = tuple(
    spec
    for model in (SessionOptions, CompileOptions, RuntimeOptions, RunStepOptions)
    for spec in specs_of(model)
)

_INDEX = index(SPECS)
_FLAGS = tuple(text for spec in SPECS if spec.flag is not None for text in spec.flag.texts)
_NAMES = tuple(spec.name for spec in SPECS)


def find(key: str) -> OptionSpec | None:
    """Return the option that a user's spelling means, or None."""
    return _INDEX.get(normalize(key))


def merge(weaker: Mapping[str, object], stronger: Mapping[str, object]) -> dict[str, object]:
    """Join two sets of options; an option of the second, however spelled, hides the one of the first.

    A value of None hides nothing.
    """
    hiding = {found.name for key, value in stronger.items() if value is not None and (found := find(key))}
    kept = {
        key: value for key, value in weaker.items() if not ((found := find(key)) and found.name in hiding)
    }
    return {**kept, **{key: value for key, value in stronger.items() if value is not None}}


#: words of other runtimes, in their normal form -> options that do what they do there
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
    """Return the canonical names of the options that a wrong key may mean, the likeliest first."""
    found = _OF_OTHERS.get(normalize(key))
    if found is not None:
        return found
    near = nearest_name(key)
    return () if near is None else (near,)


def nearest_name(key: str) -> str | None:
    """Return the canonical name of the option whose name or alias is nearest to a wrong key, or None.

    Canonical names are preferred: an alias is often nearer to something else than what was meant.
    """
    others = _OF_OTHERS.get(normalize(key))
    if others is not None:
        return others[0]
    named = nearest(key, _NAMES)
    if named is not None:
        return named
    found = nearest(key, _INDEX)
    return None if found is None else _INDEX[found].name


def flags_meant(key: str) -> tuple[str, ...]:
    """Return the texts of the flags that a wrong one may mean, without dashes, the likeliest first."""
    others = flags_of_others(key)
    near = None if others else _nearest_flag(key)
    return others if near is None else (near,)


def flags_of_others(key: str) -> tuple[str, ...]:
    """Return the texts of the flags that do what a word does in other runtimes, without dashes."""
    flags = (_INDEX[name].flag for name in _OF_OTHERS.get(normalize(key), ()))
    return tuple(flag.text for flag in flags if flag is not None)


def _nearest_flag(key: str) -> str | None:
    by_key = {normalize(text): text for text in _FLAGS if len(text) > 1}
    found = nearest(key, by_key)
    if found is not None:
        return by_key[found]
    name = nearest_name(key)
    flag = None if name is None else _INDEX[name].flag
    return None if flag is None else flag.text
