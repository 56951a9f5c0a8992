"""Names that programs, their files and their tools agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: the container inside a program directory
QPC_FILE_NAME: Final = "programqpc.bin"
#: sections of the ELF file of a program: its graph, the plan, what is measured, and what there was to say
GRAPH_SECTION: Final = "openqaic_graph"
PLAN_SECTION: Final = "openqaic_plan"
OPERATIONS_SECTION: Final = "openqaic_ops"
DIAGNOSTICS_SECTION: Final = "openqaic_diagnostics"
#: what the name of an output ends with that is the next value of the input without it
RETAINED_STATE_SUFFIX: Final = "_RetainedState"


def archive_names(names: Iterable[str]) -> dict[str, str]:
    """Return a path in an archive for each name: different paths, which stay in the folder of an unpacker."""
    taken: set[str] = set()
    return {name: free_name(_archive_name(name), taken) for name in names}


def _archive_name(name: str) -> str:
    parts = [
        "".join(char if char.isprintable() and char != "\\" else quote(char) for char in part)
        for part in name.split("/")
    ]
    if name.startswith("/"):
        parts = [f"{quote('/')}{parts[1]}", *parts[2:]]
    return "/".join(part if part.strip(".") else quote(part or "/") for part in parts)


def quote(text: str) -> str:
    """Write the bytes of a text as ``%2F``, also those of halves of characters."""
    return "".join(f"%{byte:02X}" for byte in text.encode(errors="surrogatepass"))


def free_name(name: str, taken: set[str]) -> str:
    """Return a name that is not taken yet, and take it."""
    while name in taken:
        name += "~"
    taken.add(name)
    return name


def safe_name(name: str) -> str:
    """Name of a program or of one of its outputs as a part of a file name."""
    return "".join(char if char.isprintable() and char != "/" else "_" for char in name)
