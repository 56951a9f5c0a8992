"""Files that a compilation writes beside its container: templates, profiles, tables.

They appear after the container was written, each as a whole; a compilation that fails leaves none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from qaic.compiler import cache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from qaic.options.models import CompileOptions

#: options that name a file to write; with one of them a container from the cache is not enough
_OPTIONS: Final = (
    "dump_profile",
    "dump_embedding_tables",
    "dump_custom_io_config_template_file",
    "mdp_dump_partition_config",
)


@dataclass(frozen=True, slots=True)
class SideFile:
    """A file to write after the container.

    Parameters
    ----------
    path : Path
        Where it goes; replaced if it exists.
    write : callable
        Writes the content to the path it is given, which does not exist.
    """

    path: Path
    write: Callable[[Path], None]


def are_wanted(options: CompileOptions) -> bool:
    """Whether the options name files to write."""
    return any(getattr(options, name) is not None for name in _OPTIONS)


def write_all(files: Sequence[SideFile]) -> None:
    """Write the files, each aside and then renamed; folders are created.

    Raises
    ------
    OSError
        A file cannot be written.
    """
    for file in files:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        cache.write_replacing(file.path, file.write)
