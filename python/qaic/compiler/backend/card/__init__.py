"""Containers by the vendor's compiler."""

from typing import Final

#: variable with switches that are in no document, for the vendor's compiler
EXTRA_OPTIONS: Final = "QAIC_COMPILER_OPTS_UNSUPPORTED"
