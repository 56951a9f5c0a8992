"""Names that programs, their files and their tools agree on."""

from __future__ import annotations

from typing import Final

#: the container inside a program directory
QPC_FILE_NAME: Final = "programqpc.bin"
#: sections of the ELF file of a program: its graph, the plan, what is measured, and what there was to say
GRAPH_SECTION: Final = "openqaic_graph"
PLAN_SECTION: Final = "openqaic_plan"
OPERATIONS_SECTION: Final = "openqaic_ops"
DIAGNOSTICS_SECTION: Final = "openqaic_diagnostics"
#: what the name of an output ends with that is the next value of the input without it
RETAINED_STATE_SUFFIX: Final = "_RetainedState"


def safe_name(name: str) -> str:
    """Name of a program or of one of its outputs as a part of a file name."""
    return name.replace("/", "_").replace("\0", "_")
