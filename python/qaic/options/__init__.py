"""Options of sessions and of the compiler: one table, one way to resolve it.

>>> from qaic.options import resolve
>>> given = {"aic-num-cores": "4", "num_activation": 2}
>>> options = resolve(given, options_path=None, model_is_container=False)
>>> options.compile.aic_num_cores, options.runtime.num_activations
(4, 2)
>>> options.set_compile
{'aic_num_cores': 4}
"""

from qaic.options.models import CompileOptions, RuntimeOptions, SessionOptions
from qaic.options.resolution import ResolvedOptions, resolve
from qaic.options.structures import ModelInput

__all__ = ["CompileOptions", "ModelInput", "ResolvedOptions", "RuntimeOptions", "SessionOptions", "resolve"]
