"""Options of sessions and of the compiler: the table, and their resolution.

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

from typing import TYPE_CHECKING

from qaic.support.lazy_module import lazy_door

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

__getattr__ = lazy_door(
    __name__,
    {
        ".table": "CompileOptions RunStepOptions RuntimeOptions SessionOptions",
        ".codecs.structures": "ModelInput",
        ".resolution": "ResolvedOptions",
    },
)


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
