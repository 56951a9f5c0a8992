"""Names that programs, profiles, files and tools share, and rates of profiles.

Programs, activations and inferences count from 0; inferences by program.
"""

from collections.abc import Iterable
from typing import Final

#: the container inside a program directory
QPC_FILE_NAME: Final = "programqpc.bin"
#: sections of the ELF file of a program: graph, plan, description of measurements, and diagnostics
GRAPH_SECTION: Final = "openqaic_graph"
PLAN_SECTION: Final = "openqaic_plan"
OPERATIONS_SECTION: Final = "openqaic_ops"
DIAGNOSTICS_SECTION: Final = "openqaic_diagnostics"
#: suffix of an output that is the next value of the input without the suffix
RETAINED_STATE_SUFFIX: Final = "_RetainedState"


def archive_names(names: Iterable[str]) -> dict[str, str]:
    """Return for each name a distinct path in an archive, which stays in the folder of the unpacker."""
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
    """Write the bytes of a text as ``%2F``, including those of lone surrogates."""
    return "".join(f"%{byte:02X}" for byte in text.encode(errors="surrogatepass"))


def free_name(name: str, taken: set[str]) -> str:
    """Return an unused name, and mark it as used."""
    while name in taken:
        name += "~"
    taken.add(name)
    return name


def safe_name(name: str) -> str:
    """Return the name of a program or output as a part of a file name."""
    return "".join(char if char.isprintable() and char != "/" else "_" for char in name)


#: word -> number of inferences of an activation per recorded inference
SAMPLING_RATES: Final = {"full": 1, "half": 2, "fourth": 4, "eighth": 8, "sixteenth": 16}

#: milliseconds between two reports of a stream; the first is the default
REPORTING_RATES_MS: Final = (500, 1000, 2000, 4000)

#: default prefix of file names
PREFIX: Final = "aic-profiling"
#: output binding with the stats buffer; tensors of a model cannot have this name. With several devices, each
#: has such a binding, whose name has a suffix after an underscore
STATS_OUTPUT: Final = "aiccyclecounts"

#: bytes that are kept of the start and of the end of a long name of a network. A file name has at most 255
#: bytes, and names of files made from a buffer are longer. The end distinguishes devices
_BEGIN_BYTES: Final = 80
_END_BYTES: Final = 37


def latency_name(program: int, *, prefix: str = PREFIX) -> str:
    """Return the name of a latency report."""
    return f"{prefix}-program-{program}-latency.txt"


def trace_name(program: int, *, prefix: str = PREFIX) -> str:
    """Return the name of a trace."""
    return f"{prefix}-program-{program}-trace.json"


def metrics_name(program: int, *, prefix: str = PREFIX) -> str:
    """Return the name of a report of device metrics."""
    return f"{prefix}-program-{program}-stats.txt"


def summary_name(program: int, activation: int, inference: int) -> str:
    """Return the name of the summary of one inference."""
    return f"{PREFIX}-program-{program}-activation-{activation}-inf-{inference}.txt"


def buffer_name(program: int, activation: int, inference: int, network: str, *, prefix: str = PREFIX) -> str:
    """Return the name of the stats buffer of one inference."""
    which = f"{prefix}-program-{program}-activation-{activation}-inf-{inference}"
    return f"{which}-{in_file_names(network)}-{STATS_OUTPUT}.bin"


def in_file_names(network: str) -> str:
    """Return the name of a network as file names have it."""
    name = "".join(char if char.isprintable() and char not in "/\\" else "_" for char in network)
    content = name.encode(errors="replace")
    if len(content) <= _BEGIN_BYTES + _END_BYTES:
        return name
    begin, end = (part.decode(errors="ignore") for part in (content[:_BEGIN_BYTES], content[-_END_BYTES:]))
    return f"{begin}...{end}"
