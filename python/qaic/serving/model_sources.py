"""Sources of models: Triton repositories, containers, folders of containers, ONNX files."""

import contextlib
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from qaic.errors import CompileError, OptionError
from qaic.model_path import QPC_MAGIC, find_model
from qaic.options.argv import with_flags
from qaic.options.codecs.scalars import ValueMismatchError
from qaic.options.codecs.structures import ModelInput, ModelInputs
from qaic.options.keywords import SessionKeywords
from qaic.serving.model_config import ModelSettings, read_settings
from qaic.session import Session
from qaic.support.open_regular import read_regular
from qaic.support.program_names import QPC_FILE_NAME

CONFIG_FILE_NAME = "config.pbtxt"


class ModelSource(Protocol):
    """A model that can be served."""

    def settings(self) -> ModelSettings:
        """Read the settings. Blocking."""

    def programs(self, settings: ModelSettings) -> Mapping[int, Callable[[], Session]]:
        """Find the programs to serve: version -> function that opens, or first compiles, it. Blocking."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """Model in files."""

    #: Name of the model.
    name: str
    #: Its folder in a Triton repository; else a container or an ONNX file.
    path: Path
    #: True for a folder in a Triton repository.
    is_repository: bool

    def settings(self) -> ModelSettings:
        """Read the settings. Blocking. Raises the errors of `read_settings`."""
        config = self.path / CONFIG_FILE_NAME
        if self.is_repository and config.exists():
            return read_settings(self.name, config)
        return ModelSettings(self.name)

    def programs(self, settings: ModelSettings) -> Mapping[int, Callable[[], Session]]:
        """Find the programs to serve, in containers or ONNX files. Blocking.

        Raises OptionError if there is no version, or not one program in a version, and OSError if a folder
        cannot be read.
        """
        return {version: partial(_open, path, settings) for version, path in self._files(settings).items()}

    def _files(self, settings: ModelSettings) -> dict[int, Path]:
        if not self.is_repository:
            return {1: self.path}
        folders = {int(entry.name): entry for entry in self.path.iterdir() if _is_version(entry)}
        chosen = settings.versions(folders)
        if not chosen:
            raise OptionError(
                f"{self.path} has no version to serve; it has the versions {sorted(folders)}, and a folder "
                "with a number as its name is expected",
                code="serving.versions",
            )
        file_name = settings.config.default_model_filename if settings.config is not None else ""
        return {version: _only_program(folders[version], file_name or QPC_FILE_NAME) for version in chosen}


def _open(path: Path, settings: ModelSettings) -> Session:
    options: SessionKeywords = {"set_size": settings.set_size, "num_activations": settings.num_activations}
    if settings.device_id is not None:
        options["dev_id"] = settings.device_id
    try:
        return Session(path, **options)
    except CompileError as error:
        if any(with_flags(hint, "--") != hint for hint in error.hints):
            error.hints += (_compile_first(path, error),)
        raise


def _compile_first(path: Path, error: CompileError) -> str:
    """Return the hint that names the command with the options that a server does not have."""
    folder, command, shapes = path.with_suffix(""), "", error.context.get("shapes")
    if isinstance(shapes, dict):
        with contextlib.suppress(ValueMismatchError):
            texts = ModelInputs().to_shape_texts(
                [ModelInput(name, None, shape) for name, shape in shapes.items()]
            )
            flags = [f"--shape={text}" for text in texts]
            command = shlex.join(["openqaic", "compile", str(path), "-o", str(folder), *flags])
    example = f", for example with `{command}`" if command else ""
    return (
        f"the server has no options of the compiler: compile the model first{example}, and serve its folder"
    )


def find_sources(paths: list[Path]) -> dict[str, FileSource]:
    """Find all models below paths, by name. Blocking.

    Raises FileNotFoundError if a path does not exist, and OptionError if a path cannot be
    served, or two models have one name.
    """
    found: dict[str, FileSource] = {}
    for path in paths:
        sources = list(_sources_in(path))
        if not sources and not path.is_dir():
            raise OptionError(f"{path} contains no model to serve", code="serving.nothing")
        for source in sources:
            other = found.setdefault(source.name, source)
            if other is not source:
                raise OptionError(
                    f"{other.path} and {source.path} have the same name {source.name!r}; names must differ",
                    code="serving.same_name",
                )
    return found


def _sources_in(path: Path) -> Iterator[FileSource]:
    if not path.is_dir() or (path / QPC_FILE_NAME).exists():
        file = find_model(path).path
        yield FileSource(name_of(file), file, is_repository=False)
        return
    for entry in sorted(path.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            if (entry / CONFIG_FILE_NAME).exists() or any(map(_is_version, entry.iterdir())):
                yield FileSource(entry.name, entry, is_repository=True)
            elif (entry / QPC_FILE_NAME).exists():
                yield FileSource(entry.name, entry / QPC_FILE_NAME, is_repository=False)
        elif entry.is_file() and _is_container(entry):
            yield FileSource(name_of(entry), entry, is_repository=False)


def name_of(file: Path) -> str:
    """Name the model of a file."""
    return file.resolve().parent.name if file.name == QPC_FILE_NAME else file.stem


def _is_version(entry: Path) -> bool:
    return entry.name.isascii() and entry.name.isdigit() and entry.is_dir()


def _is_container(path: Path) -> bool:
    try:
        return read_regular(path, len(QPC_MAGIC)).startswith(QPC_MAGIC)
    except OSError:
        return False


def _only_program(folder: Path, file_name: str) -> Path:
    """Find the only program below the folder of a version, without following links to folders."""
    programs = sorted(Path(where) / file_name for where, _, files in os.walk(folder) if file_name in files)
    if len(programs) != 1:
        listed = ", ".join(str(program.relative_to(folder)) for program in programs[:4]) or "none"
        raise OptionError(
            f"{folder} contains {len(programs)} files {file_name} ({listed}); one is expected",
            code="serving.programs",
        )
    return programs[0]
