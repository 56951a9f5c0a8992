"""Opens a container, given a path, bytes, a model or a container."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qaic import _core
from qaic.model_path import QPC_MAGIC, find_model
from qaic.options import resolve
from qaic.qpc import Qpc

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import onnx

    from qaic.compiler.diagnostics.record import Diagnostic
    from qaic.options import ResolvedOptions


@dataclass(frozen=True, slots=True)
class OpenedProgram:
    """A container and its run-time options."""

    qpc: _core.Qpc
    options: ResolvedOptions
    diagnostics: tuple[Diagnostic, ...] | None = None
    """Messages of the compiler about it; None where only the container has them."""


def open_program(
    model: str | os.PathLike[str] | bytes | Qpc | onnx.ModelProto,
    given: Mapping[str, object],
    options_path: str | os.PathLike[str] | None,
) -> OpenedProgram:
    """Open a container, or compile a model and open the result; `model` is that of :class:`qaic.Session`.

    `given` are options by any spelling of their names; `options_path` is a YAML file with more of them.
    """
    container: Path | Qpc | memoryview | None = None
    if isinstance(model, Qpc):
        container = model
    elif isinstance(model, str | os.PathLike):
        found = find_model(model)
        # The file that a glob or folder selects.
        model = found.path
        container = found.path if found.is_container else None
    elif isinstance(model, bytes | bytearray | memoryview) and bytes(model[:4]) == QPC_MAGIC:
        container = memoryview(model)
    resolved = resolve(given, options_path=options_path, model_is_container=container is not None)
    if isinstance(container, Qpc):
        return OpenedProgram(container.compiled, resolved, container.diagnostics)
    if container is not None:
        return OpenedProgram(_core.Qpc(container), resolved)
    return _compiled(model, resolved)


def _compiled(model: object, resolved: ResolvedOptions) -> OpenedProgram:
    # Containers do without this import, which takes a thousand times as long as opening one.
    from qaic.compilation import model_content
    from qaic.compiler import compile_resolved
    from qaic.compiler.diagnostics.record import recorded

    with recorded() as diagnostics:
        path = compile_resolved(model_content(model), resolved)
    return OpenedProgram(_core.Qpc(path), resolved, tuple(diagnostics.items))
