"""The compiler: ONNX and options in, a program container out.

``compile_resolved`` is the door: each target has its own compiler, and none takes the place of another.
Importing this package is cheap; onnx is loaded only when a model is not in the cache.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from qaic.compiler.backend.card import EXTRA_OPTIONS
from qaic.compiler.driver import ModelSource, compile_model

if TYPE_CHECKING:
    from qaic.options.resolution import ResolvedOptions

__all__ = ["compile_model", "compile_resolved"]

_log = logging.getLogger("qaic.compiler")


def compile_resolved(model: ModelSource, resolved: ResolvedOptions) -> Path:
    """Compile a model for the target that the options name.

    `model` is a file, or in memory without external data. Returns the container: in the output directory if
    there is one, else in the compile cache. Raises CompileError if the model cannot be compiled, or the
    target's compiler is missing, OptionError if an option contradicts the model, and OSError if a file cannot
    be read or written; for an unwritable output directory before any work.
    """
    options = resolved.compile
    if options.target == "card":
        from qaic.compiler.card_driver import compile_for_card

        return compile_for_card(model, resolved)
    if os.environ.get(EXTRA_OPTIONS):
        _log.debug("%s is for the vendor's compiler: ignored for the target cpu", EXTRA_OPTIONS)
    set_options = dict(resolved.set_compile)
    if resolved.run_step.aic_profiling_type:
        # This runtime option also requests statistics from the compiler.
        set_options["aic_profiling_type"] = list(resolved.run_step.aic_profiling_type)
    return compile_model(model, options, set_options, output_dir=options.output_dir)
