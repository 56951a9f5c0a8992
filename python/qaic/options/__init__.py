"""Options of sessions and of the compiler: one table, one way to resolve it.

>>> from qaic.options import resolve
>>> given = {"aic-num-cores": "4", "num_activation": 2}
>>> options = resolve(given, options_path=None, model_is_container=False)
>>> options.compile.aic_num_cores, options.runtime.num_activations
(4, 2)
>>> options.set_compile
{'aic_num_cores': 4}

The table takes longer to build than the rest of ``import qaic``, so it is loaded with the first use, not
with the import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from qaic.options.codecs.structures import ModelInput
    from qaic.options.raw_option import RawOption
    from qaic.options.resolution import ResolvedOptions
    from qaic.options.table import CompileOptions, RunStepOptions, RuntimeOptions, SessionOptions

__all__ = [
    "CompileOptions",
    "ModelInput",
    "ResolvedOptions",
    "RunStepOptions",
    "RuntimeOptions",
    "SessionOptions",
    "resolve",
]

_HOMES = {
    "CompileOptions": "qaic.options.table",
    "RunStepOptions": "qaic.options.table",
    "RuntimeOptions": "qaic.options.table",
    "SessionOptions": "qaic.options.table",
    "ModelInput": "qaic.options.codecs.structures",
    "ResolvedOptions": "qaic.options.resolution",
}


def resolve(
    kwargs: Mapping[str, object],
    *,
    options_path: str | os.PathLike[str] | None,
    model_is_container: bool,
    flags: Sequence[RawOption] = (),
) -> ResolvedOptions:
    """Resolve options: keyword arguments and flags win over the options file, the file over the defaults.

    See `qaic.options.resolution.resolve` for the parameters and errors.
    """
    from qaic.options import resolution

    return resolution.resolve(
        kwargs, options_path=options_path, model_is_container=model_is_container, flags=flags
    )


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(home), name)
