"""Options of sessions and of the compiler: the table, and their resolution.

>>> from qaic.options import resolve
>>> given = {"aic-num-cores": "4", "num_activation": 2}
>>> options = resolve(given, options_path=None, model_is_container=False)
>>> options.compile.aic_num_cores, options.runtime.num_activations
(4, 2)
>>> options.set_compile
{'aic_num_cores': 4}

The table takes longer to build than the rest of ``import qaic``, so it is loaded when a name of this package
is first imported or used, not by ``import qaic``.
"""

from typing import TYPE_CHECKING

from qaic.support.lazy_module import lazy_door

if TYPE_CHECKING:
    from qaic.options.codecs.structures import ModelInput
    from qaic.options.resolution import ResolvedOptions, resolve
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
        ".resolution": "ResolvedOptions resolve",
    },
)
