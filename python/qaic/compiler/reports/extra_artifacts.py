"""Files that a compilation writes next to its container: templates, profiles, tables.

They are written atomically after the container; a compilation that fails leaves none.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qaic.errors import OptionError
from qaic.options.files.parsed_file import InputFileContent
from qaic.options.table import CompileOptions
from qaic.support.atomic_io import write_replacing
from qaic.support.open_regular import read_regular

if TYPE_CHECKING:
    from qaic.compiler.ir.model import SideFile

#: options that name a file to write, and the first bytes of such a file; with one of them, a container from
#: the cache is not sufficient
_OPTIONS: Final = {
    "dump_profile": b"---\nGlowToolsVersion:",
    "dump_embedding_tables": b"PK\x03\x04",
    "dump_custom_io_config_template_file": b"# Custom I/O: ",
    "mdp_dump_partition_config": b'{\n  "connections": [',
}


def are_wanted(options: CompileOptions) -> bool:
    """Return True if the options name files to write."""
    return any(getattr(options, name) is not None for name in _OPTIONS)


def check_targets(model: object, options: CompileOptions) -> None:
    """Refuse paths where a write would destroy another file, because renaming replaces files.

    The file of a model must not be replaced. Raises OptionError if an option names a directory or device, an
    input file, the file of another option, or a file of another kind.
    """
    kept = {}
    if isinstance(model, str | os.PathLike):
        kept[_real(Path(model))] = "the model"
    for name, path in _read(options):
        kept.setdefault(_real(path), f"the file of {name}")
    for name in _OPTIONS:
        path = getattr(options, name)
        if path is None:
            continue
        target = _real(path)
        found = kept.get(target)
        if found is None and target.exists() and not target.is_file():
            found = "a directory" if target.is_dir() else "a device or pipe"
        if found is None and target.exists() and not _is_of_kind(target, _OPTIONS[name]):
            found = "a file of another kind"
        if found is not None:
            raise OptionError(
                f"{name}: {str(path)!r} is {found}; "
                "the path of a new file, or of a file to replace, is expected",
                code="option.output_file",
                context={"options": [name], "path": str(path)},
            )
        kept[target] = f"the file of {name}"


def _read(options: CompileOptions) -> Iterator[tuple[str, Path]]:
    """Yield the files that options name, if they are read again later."""
    for field in fields(options):
        value = getattr(options, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, InputFileContent):
                yield field.name, item.path


def _is_of_kind(path: Path, head: bytes) -> bool:
    """Return True if a file is empty or begins like a file of the option; other files belong to the user."""
    return read_regular(path, len(head))[: len(head)] in {b"", head}


def _real(path: Path) -> Path:
    """Follow links; unlike `Path.resolve`, does not raise on a cycle of links."""
    return Path(os.path.realpath(path))


def write_all(files: "Sequence[SideFile]") -> None:
    """Write the files atomically; folders are created, links are kept.

    Raises OSError if a file cannot be written.
    """
    for file in files:
        _real(file.path).parent.mkdir(parents=True, exist_ok=True)
        write_replacing(file.path, file.write)
