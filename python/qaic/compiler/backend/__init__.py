"""Container creation: by this package for the CPU device, by the vendor's compiler for a card."""

from typing import Final

#: environment variable that holds undocumented switches for the vendor's compiler
EXTRA_OPTIONS: Final = "QAIC_COMPILER_OPTS_UNSUPPORTED"
