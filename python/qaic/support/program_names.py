"""Names that programs, their files and their tools agree on."""

from __future__ import annotations

from typing import Final

#: the container inside a program directory
QPC_FILE_NAME: Final = "programqpc.bin"
#: what the name of an output ends with that is the next value of the input without it
RETAINED_STATE_SUFFIX: Final = "_RetainedState"


def safe_name(name: str) -> str:
    """Name of a program or of one of its outputs as a part of a file name."""
    return name.replace("/", "_").replace("\0", "_")
