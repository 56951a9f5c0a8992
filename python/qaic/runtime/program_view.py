"""Properties of a session's program: tensors, container, options, warnings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from numpy.typing import ArrayLike

from qaic import _core
from qaic.runtime.shapes import ShapeDict
from qaic.support.lazy_module import LazyModule

if TYPE_CHECKING:
    import dataclasses
    import pathlib

    from qaic import model_path as paths
    from qaic import options as typed
    from qaic import qpc as containers
    from qaic.compiler.diagnostics.messages import Diagnostic

    #: The container, the options, and the messages of the compiler, or None if only the container has them.
    Opened: TypeAlias = tuple[_core.Qpc, typed.ResolvedOptions, tuple[Diagnostic, ...] | None]
else:
    dataclasses, pathlib = LazyModule("dataclasses"), LazyModule("pathlib")
    paths, typed = LazyModule("qaic.model_path"), LazyModule("qaic.options")
    containers = LazyModule("qaic.qpc")
    # Importing the compiler takes longer than opening a container.
    Diagnostic = Opened = Any


class ProgramView:
    """The program of a session."""

    def __init__(self, program: Opened) -> None:
        self._qpc, options, diagnostics = program
        self._runtime = options.runtime
        self._names_devices = "dev_id" in options.as_given
        inputs, outputs = self._qpc.tensors()
        self._inputs = ShapeDict.of(inputs)
        self._outputs = ShapeDict.of(outputs)
        self._diagnostics: tuple[Diagnostic, ...] | None = diagnostics
        self._option_warnings = options.warnings

    @property
    def model_input_shape_dict(self) -> ShapeDict:
        """Name -> ``(shape, dtype)`` of the inputs, in order. May also be called."""
        return self._inputs

    @property
    def model_output_shape_dict(self) -> ShapeDict:
        """Name -> ``(shape, dtype)`` of the outputs, in order. May also be called."""
        return self._outputs

    @property
    def inputs(self) -> tuple[containers.TensorSpec, ...]:
        """Name, largest shape and dtype of each input, in order."""
        return _specs(self._inputs)

    @property
    def outputs(self) -> tuple[containers.TensorSpec, ...]:
        """Name, largest shape and dtype of each output, in order."""
        return _specs(self._outputs)

    @property
    def path(self) -> pathlib.Path | None:
        """The file of the container that was opened or compiled; None for bytes."""
        return None if self._qpc.path is None else pathlib.Path(self._qpc.path)

    @cached_property
    def qpc(self) -> containers.Qpc:
        """The container for inspection; it is not read again."""
        qpc = containers.Qpc(self._qpc)
        if self._diagnostics is not None:
            qpc.diagnostics = self._diagnostics
        return qpc

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Messages of the compiler about the program, as objects; see :class:`qaic.Qpc`."""
        return self.qpc.diagnostics

    @property
    def options(self) -> Mapping[str, object]:
        """Compile options of the container and current run-time options, by name; read-only."""
        runtime = {
            field.name: getattr(self._runtime, field.name) for field in dataclasses.fields(self._runtime)
        }
        return MappingProxyType({**self.qpc.options, **runtime})

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about options, model and container, which were also logged.

        The container stores the warnings of the compiler, so they include those of an earlier compilation;
        ``diagnostics`` also has their codes and nodes.
        """
        compiled = (one.message for one in self.diagnostics if one.severity == "warning")
        return (*self._option_warnings, *compiled, *self._qpc.warnings)

    # --- for the methods of a session

    def backend_options(self) -> dict[str, object]:
        """Run-time options and their current values."""
        return self._runtime.backend_options()

    def changed_backend_options(self) -> dict[str, Any]:
        """Run-time options that differ from their defaults."""
        changed = {
            field.name: value
            for field in dataclasses.fields(self._runtime)
            if (value := getattr(self._runtime, field.name)) != field.default
        }
        if self._names_devices:
            changed["dev_id"] = self._runtime.dev_id
        return changed

    def _device_ids(self) -> list[int] | None:
        """Devices that the user named; ``None`` leaves the choice to the runtime."""
        named = self._runtime.dev_id
        if not self._names_devices:
            return None
        return [named] if isinstance(named, int) else list(named)

    def _named(self, inputs: Mapping[str, ArrayLike] | ArrayLike) -> Mapping[str, ArrayLike]:
        """Return a mapping for the array of a program with one input; other values are unchanged."""
        is_array = hasattr(inputs, "__array__") or hasattr(inputs, "__dlpack__") or isinstance(inputs, list)
        if is_array and len(self._inputs) == 1 and not isinstance(inputs, Mapping):
            return dict.fromkeys(self._inputs, inputs)
        # The compiled module refuses values that are no mapping, and reports what it expects.
        return cast("Mapping[str, ArrayLike]", inputs)

    def _joined(
        self, inputs: Mapping[str, ArrayLike] | ArrayLike, others: Mapping[str, ArrayLike]
    ) -> Mapping[str, ArrayLike]:
        """Return all inputs of a call. Raises TypeError, as Python does, if an input is given twice."""
        named = {**self._named(inputs)}
        if twice := named.keys() & others.keys():
            raise TypeError(f"run() got multiple values for input {min(twice)!r}")
        return {**named, **others}

    # --- copies and processes -------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the path of the container, or its bytes if it has no path, and the run-time options.

        The loaded program, state, metrics and profiles are not pickled.
        """
        return (_reopened, (type(self), self.qpc, self.changed_backend_options()))

    # --- for people -----------------------------------------------------------------------------------------

    def _state(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        where = f" {str(self.path)!r}" if self.path else ""
        inputs, outputs = (", ".join(map(str, specs)) for specs in (self.inputs, self.outputs))
        return f"<qaic.Session{where}: {inputs or 'nothing'} -> {outputs or 'nothing'}; {self._state()}>"

    def _repr_html_(self) -> str:
        from qaic.report import Table, columns_of

        rows = [
            (side, spec.name, str(spec.shape), str(spec.dtype))
            for side, specs in (("input", self.inputs), ("output", self.outputs))
            for spec in specs
        ]
        caption = f"Session {self.path or 'of bytes'}: {self._state()}"
        return Table("tensors", caption, columns_of("direction | name | shape | dtype"), rows)._repr_html_()


def _specs(shapes: ShapeDict) -> tuple[containers.TensorSpec, ...]:
    return tuple(containers.TensorSpec(name, shape, dtype) for name, (shape, dtype) in shapes.items())


def _reopened(session: type, qpc: containers.Qpc, options: dict[str, object]) -> object:
    return session(qpc, **options)


def opened(model: object, given: Mapping[str, object], options_path: str | os.PathLike[str] | None) -> Opened:
    """Open a container, or compile a model and open the result."""
    container: pathlib.Path | containers.Qpc | memoryview | None = None
    # The module of containers is imported only if the model can be one.
    if not isinstance(model, str | pathlib.Path) and isinstance(model, containers.Qpc):
        container = model
    elif isinstance(model, str | os.PathLike):
        found = paths.find_model(model)
        # The file that a glob or folder selects.
        model = found.path
        container = found.path if found.is_container else None
    elif isinstance(model, bytes | bytearray | memoryview) and bytes(model[:4]) == paths.QPC_MAGIC:
        container = memoryview(model)
    resolved = typed.resolve(given, options_path=options_path, model_is_container=container is not None)
    if isinstance(container, pathlib.Path | memoryview):
        return _core.Qpc(container), resolved, None
    if container is not None:
        return container.compiled, resolved, container.diagnostics
    # Containers do not need these imports, which take a thousand times as long as opening one.
    from qaic.compiler.diagnostics.messages import recorded
    from qaic.compiler.driver import compile_resolved

    if not isinstance(model, pathlib.Path):
        from qaic.compilation import model_content

        model = model_content(model)
    with recorded() as diagnostics:
        path = compile_resolved(model, resolved)
    return _core.Qpc(path), resolved, tuple(diagnostics.items)
