"""``qaic.compile``: compiles a model with options in any form to an opened container."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from qaic.compiler.diagnostics.messages import Diagnostic, recorded, warn
from qaic.compiler.driver import compile_resolved
from qaic.compiler.output_folder import check_container, writable_folder
from qaic.errors import CompileError, InputTypeError, OptionConflictError, OptionError, UnknownOptionError
from qaic.model_path import QPC_MAGIC, find_model
from qaic.options import ResolvedOptions, resolve
from qaic.options.keywords import CompileKeywords
from qaic.options.signature import function_with_options
from qaic.options.table import find, merge, nearest_name
from qaic.qpc import DataType, Qpc
from qaic.support.atomic_io import copy_replacing
from qaic.support.lazy_module import LazyModule

if TYPE_CHECKING:
    import onnx

    from qaic import configs
else:
    # Both take long to import, and are needed only to evaluate the annotations of `compile`.
    onnx, configs = LazyModule("onnx"), LazyModule("qaic.configs")


@function_with_options(CompileKeywords)
def compile(  # noqa: A001  # its name in the package: `qaic.compile`
    model: str | os.PathLike[str] | bytes | onnx.ModelProto | Sequence[Any],
    config: configs.CompileConfig
    | configs.AicCompilerConfig
    | Mapping[str, object]
    | str
    | os.PathLike[str]
    | None = None,
    **options: Unpack[CompileKeywords],
) -> Qpc:
    """Compile an ONNX model to a program container.

    Blocks about as long as onnxruntime needs to open the model. The same model with the same options comes
    from the compile cache, except for a model of 1 GiB or more that is compiled into a folder.

    Parameters
    ----------
    model
        Path of an ``.onnx`` file; its content as bytes; an ``onnx.ModelProto``; or a list with one of these.
    config
        Options, in one of these forms:

        * a mapping from option names, in any spelling, to values;
        * the path of a YAML options file, or of a back-end extension file (``.json``);
        * a :class:`qaic.configs.AicCompilerConfig`; only fields that were set have an effect;
        * a :class:`qaic.configs.CompileConfig` for the back end ``AIC``; ``backend_binary_path`` sets the
          file of the container.
    **options
        Options as for :class:`qaic.Session`; they take precedence over ``config``.
        ``docs/reference/options.md`` lists them. Run-time options are accepted and have no effect.

    Returns
    -------
    qaic.Qpc
        The container, at ``backend_binary_path``, else in ``output_dir``, else in the compile cache.

    Raises
    ------
    FileNotFoundError
        The model or a file of options does not exist.
    qaic.errors.InputTypeError
        ``model`` is a container, or not a model. Also a ``TypeError``.
    qaic.errors.OptionError
        An option is wrong; all wrong values are listed. Options that contradict each other are an
        ``OptionConflictError``, unknown ones an ``UnknownOptionError``, which is also a ``TypeError``.
    qaic.errors.CompileError
        The model cannot be compiled, or the configuration is for a back end that cannot compile here.

    Examples
    --------
    >>> import qaic
    >>> qpc = qaic.compile("model.onnx", aic_num_cores=4, convert_to_fp16=True)
    >>> qpc.program_info.num_cores
    4
    """
    source = _single(model)
    request = _request(config)
    _refuse_backend(request, options)
    given = merge(request.options, options)
    resolved = resolve(given, options_path=request.options_path, model_is_container=False)
    with recorded() as diagnostics:
        _report_unknown(request, strict=resolved.session.strict_options)
        if request.ignored:
            text = f"fields of CompileConfig that have no effect for AIC: {', '.join(request.ignored)}"
            warn("config.no_effect", text, nodes=request.ignored)
        content = model_content(source)
        with _log_level(request.log_level), _writable(request.binary(resolved.compile.output_dir)) as target:
            path = compile_resolved(content, resolved)
            if target is not None:
                # The file is copied and not linked, because an edit of the file must not change the cache.
                copy_replacing(path, target)
            qpc = Qpc(path if target is None else target)
            if request.is_aic and "convert_to_fp16" not in resolved.set_compile:
                _hint_about_fp16(qpc)
    qpc.diagnostics = (*option_diagnostics(resolved), *diagnostics.items)
    return qpc


def option_diagnostics(resolved: ResolvedOptions) -> tuple[Diagnostic, ...]:
    """Return the logged warnings about options as diagnostics of the result."""
    return tuple(Diagnostic("warning", "options", text) for text in resolved.warnings)


@dataclass(slots=True)
class _Request:
    """The options of a configuration, in any of its forms."""

    options: dict[str, object] = field(default_factory=dict)
    options_path: Path | None = None
    #: keys that are not options, and the name of the configuration that contains them
    unknown: tuple[str, ...] = ()
    place: str = ""
    backend_binary: Path | None = None
    log_level: int | None = None
    ignored: tuple[str, ...] = ()
    #: true for a configuration class, whose users may expect its defaults
    is_aic: bool = False
    backend: str = "AIC"

    def binary(self, output_dir: Path | None) -> Path | None:
        """Return the path of the container; None for the default."""
        return None if self.backend_binary is None else (output_dir or Path()) / self.backend_binary


def _request(config: object) -> _Request:
    if config is None:
        return _Request()
    if isinstance(config, Mapping):
        wrong = [key for key in config if not isinstance(key, str)]
        if wrong:
            raise OptionError(
                f"config: found the key {wrong[0]!r}, expected names of options",
                code="option.invalid_value",
                context={"options": ["config"]},
            )
        return _Request(dict(config))
    if isinstance(config, str | os.PathLike):
        path = Path(os.fspath(config))
        return _of_extension_file(path) if path.suffix.lower() == ".json" else _Request(options_path=path)
    return _of_class(config)


def _of_extension_file(path: Path) -> _Request:
    from qaic.configs.extension_json import read_extension_file

    return _of_extensions(read_extension_file(path), str(path))


def _of_extensions(data: Mapping[str, object], place: str) -> _Request:
    known = {key: value for key, value in data.items() if find(key) is not None}
    unknown = tuple(key for key in data if key not in known)
    return _Request(known, unknown=unknown, place=place)


def _of_class(config: object) -> _Request:
    from qaic.configs import AicCompilerConfig, AicRuntimeConfig, CompileConfig
    from qaic.configs.aic import set_fields
    from qaic.configs.extension_json import mx_entries

    if isinstance(config, AicCompilerConfig | AicRuntimeConfig):
        return _Request(set_fields(config), is_aic=True)
    if not isinstance(config, CompileConfig):
        found = (
            f"the class {config.__name__} itself"
            if isinstance(config, type)
            else f"type {type(config).__name__}"
        )
        raise InputTypeError(
            f"config: found {found}, expected a mapping, a path, AicCompilerConfig or CompileConfig",
            code="option.config_type",
            context={"found": type(config).__name__},
        )
    request = _of_extensions(config.other_options, "back-end extensions")
    request.is_aic = True
    request.backend = config.backend.value
    if config.debug:
        request.options["enable_debug"] = True
    if config.compiler_custom_configs is not None:
        request.options = merge(request.options, set_fields(config.compiler_custom_configs))
    if config.data_format_config is not None:
        request.options["custom_io_list_file"] = mx_entries(config.data_format_config)
    if config.set_output_tensors:
        request.options["extra_output_tensors"] = config.set_output_tensors
    if config.enable_intermediate_outputs:
        request.options["all_intermediate_outputs"] = True
    request.backend_binary = config.backend_binary_file
    if "log_level" in config.model_fields_set:
        request.log_level = config.log_level_number
    request.ignored = config.fields_without_effect
    return request


def _refuse_backend(request: _Request, options: Mapping[str, object]) -> None:
    """Refuse a configuration for another processor, which must not be compiled for AIC."""
    named = request.options.get("backend", options.get("backend"))
    backend = request.backend if request.backend != "AIC" or not isinstance(named, str) else named.upper()
    from qaic.configs.base import BackendType

    if backend not in set(BackendType) or backend == BackendType.AIC:
        return
    raise CompileError(
        f"backend {backend} needs Qualcomm's SDK; only models for AIC can be compiled here",
        code="compile.backend_unavailable",
        context={"backend": backend},
        hints=("CompileConfig writes the options as JSON for the SDK: to_backend_extension_json()",),
    )


def _report_unknown(request: _Request, *, strict: bool) -> None:
    if not request.unknown:
        return
    texts = []
    for key in request.unknown:
        near = nearest_name(key)
        texts.append(f"{key} is not an option" + (f"; did you mean {near}?" if near else ""))
    text = f"{request.place}: {'; '.join(texts)}"
    if strict:
        raise UnknownOptionError(text, code="option.unknown", context={"options": list(request.unknown)})
    warn("options.unknown", f"ignored: {text}", nodes=request.unknown)


# --- the model ----------------------------------------------------------------------------------------------


def _single(model: object) -> object:
    if not isinstance(model, list | tuple):
        return model
    if len(model) == 1:
        return model[0]
    if not model:
        raise CompileError(
            "the list of models is empty, one model is expected", code="compile.no_model", context={}
        )
    raise CompileError(
        f"found {len(model)} models, expected one: a program for the cpu target has one graph",
        code="compile.several_models",
        context={"models": len(model)},
        hints=(
            "if they are one model with several sets of input shapes, compile that model with "
            "network_specialization_config; else compile each by itself",
        ),
    )


def model_content(model: object) -> Path | bytes | onnx.ModelProto:
    """Return the model in a form that the compiler accepts.

    Raises
    ------
    qaic.errors.InputTypeError
        The argument is a compiled container, or not a model.
    """
    if isinstance(model, Qpc):
        raise _compiled_already(repr(model))
    if isinstance(model, str | os.PathLike):
        found = find_model(model)
        if found.is_container:
            raise _compiled_already(str(found.path))
        return found.path
    if isinstance(model, bytes | bytearray | memoryview):
        data = bytes(model)
        if data.startswith(QPC_MAGIC):
            raise _compiled_already("the model")
        return data
    if type(model).__module__.split(".")[0] == "onnx" and hasattr(model, "SerializeToString"):
        from onnx import ModelProto

        if isinstance(model, ModelProto):
            return model
    raise InputTypeError(
        f"model: found type {type(model).__name__}, expected a path, bytes or an onnx.ModelProto",
        code="option.model_type",
        context={"found": type(model).__name__},
        hints=("qaic.Session also accepts a qaic.Qpc",),
    )


def _compiled_already(what: str) -> InputTypeError:
    return InputTypeError(
        f"{what} is a compiled container, an ONNX model is expected",
        code="option.model_compiled",
        context={"model": what},
        hints=("qaic.Session runs a container, and qaic.Qpc inspects it",),
    )


# --- around the compilation ---------------------------------------------------------------------------------


@contextmanager
def _writable(target: Path | None) -> Iterator[Path | None]:
    """Create the folder of a file, and check that the file can be written; remove the folder on failure."""
    if target is None:
        yield None
        return
    if target.is_dir():
        raise OptionConflictError(
            f"backend_binary_path: {target} is a folder, a file is expected",
            code="option.backend_binary_path",
            context={"path": str(target)},
        )
    check_container(target, "backend_binary_path")
    with writable_folder(target.parent):
        yield target


_levels_lock = threading.Lock()
_levels: list[int] = []
_level_before = logging.NOTSET


@contextmanager
def _log_level(level: int | None) -> Iterator[None]:
    """Set the level of the logger ``qaic`` in the block; of several compilations, the lowest level counts."""
    if level is None:
        yield
        return
    global _level_before  # noqa: PLW0603  # the level of a logger is one for the process
    logger = logging.getLogger("qaic")
    with _levels_lock:
        if not _levels:
            _level_before = logger.level
        _levels.append(level)
        logger.setLevel(min(_levels))
    try:
        yield
    finally:
        with _levels_lock:
            _levels.remove(level)
            logger.setLevel(min(_levels, default=_level_before))


def _hint_about_fp16(qpc: Qpc) -> None:
    """Warn that the documented default of the class has no effect, if the program is in float32."""
    if any(mapping.data_type is DataType.FLOAT32 for mapping in qpc.buffer_mappings):
        warn(
            "config.float32",
            "the model is compiled in float32: convert_to_fp16 is not set in the configuration, and the "
            "default of AicCompilerConfig has no effect; set it to True or False",
        )
