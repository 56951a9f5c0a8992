"""``CompileConfig``: one compilation, as the QAIRT Python API describes it."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import PrivateAttr, SerializationInfo, ValidationInfo, field_validator, model_serializer

from qaic.configs import aic, extension_json
from qaic.configs.aic_models import AicCompilerConfig
from qaic.configs.base import BackendType, ConfigModel, OpenModel
from qaic.configs.modes import CompilerModes, CompilerModeSetters, parse_soc_details, require_htp
from qaic.errors import OptionError
from qaic.support.atomic_io import write_replacing

_LOG = logging.getLogger("qaic.configs")

#: Suffix of the stem of a back-end binary.
_STEM_SUFFIX = "_backend"

#: Name of a level in a configuration -> level of Python, which has fewer levels than the tools.
LOG_LEVELS = {
    "critical": logging.CRITICAL,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "verbose": logging.DEBUG,
    "debug": logging.DEBUG,
    "trace": logging.DEBUG,
}

LogLevel = Literal["critical", "error", "warn", "warning", "info", "verbose", "debug", "trace"]


class OpPackageIdentifier(OpenModel):
    """A package of custom operators. Every keyword is kept as given.

    A compilation for AIC uses the option ``register_custom_op`` instead.
    """


class CompileConfig(ConfigModel):
    """Configuration of an ahead-of-time compilation.

    ``qaic.compile(model, config)`` compiles for the back end ``AIC``. Configurations for ``HTP``,
    ``HTP_MCP`` and ``LPAI`` can be written as JSON, but ``qaic.compile`` refuses them.

    Parameters
    ----------
    backend
        ``"AIC"``, or another back end with compilation ahead of time, in upper case.
    backend_binary_path
        File of the container: an absolute path, or a path relative to ``output_dir`` or else to the current
        directory. The file name becomes ``<stem>_backend.bin``. ``None``: no such file is written.
    compiler_custom_configs
        Options of the AIC compiler. Only with ``AIC``.
    set_output_tensors
        Tensors to add as outputs of the model: names, ``graph:name``, or one text
        ``"graph0:a,b;graph1:c"``. Cannot be combined with ``enable_intermediate_outputs``.
    enable_intermediate_outputs
        True to add every tensor with a fixed shape as an output.
    debug
        For AIC, the option ``enable_debug``.
    log_level
        For AIC, the level of the logger ``qaic`` during the compilation, in upper or lower case. ``None``:
        the level that the logger has when the configuration is created.
    context_custom_configs, device_custom_configs, graph_custom_configs, group_context_config,
    memory_custom_config
        Options of HTP and HTP MCP: configurations, or mappings of their keywords.
    soc_details
        Target of HTP as text, ``"chipset:SM8550;dsp_arch:v73;soc_model:43"``; other back ends ignore it with
        a warning.
    soc_configs
        Target of HTP as ``{"soc_model": 43}``.
    data_format_config
        Tensors whose buffers have an MX format, in the form of the tools' JSON, or the path of such a file.
        For AIC, the tensors get the precision ``mxint8`` of the option ``custom_io_list_file``.
    enable_backend_trace, io_tensor_mem_type, module_format, op_packages
        Kept as data. ``qaic.compile`` warns that they have no effect if they are set.

    Raises
    ------
    pydantic.ValidationError
        A field is unknown, a value is wrong, or fields exclude each other; assignments also raise it. Also a
        ``ValueError``.

    Examples
    --------
    >>> from qaic.configs import AicCompilerConfig, CompileConfig
    >>> config = CompileConfig(backend="AIC", compiler_custom_configs=AicCompilerConfig(convert_to_fp16=True))
    >>> config.model_dump(context={"backend_extensions": True})
    {'compiler_convert_to_FP16': True}
    """

    if TYPE_CHECKING:
        # Type checkers read only the types of the fields, but pydantic accepts more types and converts them.
        def __init__(
            self,
            /,
            *,
            backend: BackendType | str,
            backend_binary_path: str | os.PathLike[str] | None = ...,
            compiler_custom_configs: AicCompilerConfig | Mapping[str, Any] | None = ...,
            context_custom_configs: Sequence[OpenModel | Mapping[str, Any]] | None = ...,
            data_format_config: dict[str, Any] | str | os.PathLike[str] | None = ...,
            debug: bool = ...,
            device_custom_configs: Sequence[OpenModel | Mapping[str, Any]] | None = ...,
            enable_backend_trace: bool = ...,
            enable_intermediate_outputs: bool | None = ...,
            graph_custom_configs: Sequence[OpenModel | Mapping[str, Any]] | None = ...,
            group_context_config: OpenModel | Mapping[str, Any] | None = ...,
            io_tensor_mem_type: Literal["raw", "memhandle"] = ...,
            log_level: LogLevel | str | None = ...,
            memory_custom_config: OpenModel | Mapping[str, Any] | None = ...,
            module_format: Literal["bin", "dlc"] = ...,
            op_packages: Sequence[OpPackageIdentifier] | None = ...,
            set_output_tensors: Sequence[str] | str | None = ...,
            soc_configs: dict[str, int] | None = ...,
            soc_details: str | None = ...,
        ) -> None: ...

    backend: BackendType
    backend_binary_path: str | None = None
    compiler_custom_configs: AicCompilerConfig | None = None
    context_custom_configs: list[OpenModel] | None = None
    data_format_config: dict[str, Any] | str | None = None
    debug: bool = False
    device_custom_configs: list[OpenModel] | None = None
    enable_backend_trace: bool = False
    enable_intermediate_outputs: bool | None = None
    graph_custom_configs: list[OpenModel] | None = None
    group_context_config: OpenModel | None = None
    io_tensor_mem_type: Literal["raw", "memhandle"] = "raw"
    log_level: LogLevel | None = "error"
    memory_custom_config: OpenModel | None = None
    module_format: Literal["bin", "dlc"] = "bin"
    op_packages: list[OpPackageIdentifier] | None = None
    set_output_tensors: list[str] | None = None
    soc_configs: dict[str, int] | None = None
    soc_details: str | None = None

    # Content of a back-end extension file without a field, all content of a file that was passed through,
    # and True if the compilation must still fill in the names of graphs.
    _others: dict[str, Any] = PrivateAttr(default_factory=dict)
    _passed_through: dict[str, Any] | None = PrivateAttr(default=None)
    _ensure_graphs: bool = PrivateAttr(default=False)

    # --- construction and assignment ------------------------------------------------------------------------

    @field_validator("backend", mode="before")
    @classmethod
    def _known_backend(cls, value: object) -> object:
        names = [str(backend) for backend in BackendType.offline_preparable_backends()]
        text = value.value if isinstance(value, BackendType) else value
        if text in names:
            return value
        if text in set(BackendType):
            reason = f"nothing can be compiled ahead of time for the back end {text}"
        elif isinstance(text, str) and text.upper() in names:
            reason = f"found {text!r}, back ends are written in upper case: {text.upper()!r}"
        else:
            reason = f"found {text!r}"
        raise ValueError(f"{reason}; expected one of {', '.join(names)}")

    # Each field is checked separately, so that a refused assignment does not change the configuration.
    @field_validator("backend", "compiler_custom_configs")
    @classmethod
    def _only_for_aic(cls, value: Any, info: ValidationInfo) -> Any:
        fields = {**info.data, str(info.field_name): value}
        backend = fields.get("backend", BackendType.AIC)
        if fields.get("compiler_custom_configs") is not None and backend is not BackendType.AIC:
            raise ValueError(f"compiler_custom_configs exists for AIC only, found the backend {backend}")
        return value

    @field_validator("backend_binary_path", mode="before")
    @classmethod
    def _is_file_name(cls, value: object) -> object:
        if value is None:
            return None
        text = os.fspath(value) if isinstance(value, str | os.PathLike) else value
        # The name `.bin` would be empty without its suffix.
        if (
            not isinstance(text, str)
            or Path(text).name in {"", "..", ".bin"}
            or text.endswith("/")
            or "\0" in text
        ):
            raise ValueError(f"found {value!r}, expected the name or path of a file")
        return text

    @field_validator(*extension_json.FIELDS.values(), mode="before")
    @classmethod
    def _as_models(cls, value: object, info: ValidationInfo) -> object:
        backend = info.data.get("backend")
        sections = {field: section for section, field in extension_json.FIELDS.items()}
        known = extension_json.sections_of(backend) if backend is not None else {}
        kind = known.get(sections[str(info.field_name)], OpenModel)
        if isinstance(value, Mapping):
            return kind(**value)
        if isinstance(value, list | tuple):
            return [kind(**item) if isinstance(item, Mapping) else item for item in value]
        return value

    @field_validator("data_format_config", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        return os.fspath(value) if isinstance(value, os.PathLike) else value

    @field_validator("log_level", mode="before")
    @classmethod
    def _in_lower_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("set_output_tensors", mode="before")
    @classmethod
    def _as_names(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @field_validator("set_output_tensors", "enable_intermediate_outputs")
    @classmethod
    def _one_choice_of_outputs(cls, value: Any, info: ValidationInfo) -> Any:
        other = (
            "enable_intermediate_outputs" if info.field_name == "set_output_tensors" else "set_output_tensors"
        )
        if value and info.data.get(other):
            message = f"{info.field_name} and {other} exclude each other: all outputs contain the named ones"
            raise ValueError(message)
        return value

    @field_validator("soc_details")
    @classmethod
    def _readable_soc(cls, value: str | None, info: ValidationInfo) -> str | None:
        backend = info.data.get("backend")
        if value is None or backend is None:
            return value
        if backend is not BackendType.HTP:
            _LOG.warning("soc_details is ignored: it applies to HTP, and the backend is %s", backend)
        else:
            parse_soc_details(value)
            if info.data.get("device_custom_configs"):
                _LOG.warning("soc_details is overridden by device_custom_configs")
        return value

    def model_post_init(self, context: Any, /) -> None:
        """Finish the construction: a log level of None becomes the level of the logger ``qaic``."""
        super().model_post_init(context)
        if self.log_level is None:
            level = logging.getLogger("qaic").getEffectiveLevel()
            names: dict[int, LogLevel] = {
                logging.CRITICAL: "critical",
                logging.ERROR: "error",
                logging.WARNING: "warn",
                logging.INFO: "info",
            }
            # This bypasses the validation, which would mark the field as set.
            self.__dict__["log_level"] = names.get(level, "critical" if level > logging.CRITICAL else "debug")

    # --- as data --------------------------------------------------------------------------------------------

    def model_dump(self, **arguments: Any) -> dict[str, Any]:
        """Return the fields; ``context={"backend_extensions": True}`` selects the back-end extensions.

        Parameters
        ----------
        **arguments
            Arguments of pydantic. In the mode ``"python"``, configurations inside stay objects. ``exclude``,
            or a list ``exclude`` in the context, omits fields.
        """
        if arguments.get("mode", "python") != "python":
            return super().model_dump(**arguments)
        return self._as_dict(
            arguments.get("context"),
            arguments.get("exclude"),
            arguments.get("include"),
            only_set=bool(arguments.get("exclude_unset")),
            no_none=bool(arguments.get("exclude_none")),
        )

    @model_serializer(mode="plain")
    def serialize(self, info: SerializationInfo) -> dict[str, Any]:
        """Serialize for pydantic; call `model_dump` or `model_dump_json`."""
        return self._as_dict(
            info.context, info.exclude, info.include, only_set=info.exclude_unset, no_none=info.exclude_none
        )

    def _as_dict(
        self, context: Any, exclude: Any, include: Any, *, only_set: bool, no_none: bool
    ) -> dict[str, Any]:
        wanted = context if isinstance(context, Mapping) else {}
        left_out = {*(exclude or ()), *wanted.get("exclude", ())}
        if wanted.get("backend_extensions"):
            return self._backend_extensions(left_out)
        names = [
            name
            for name in type(self).model_fields
            if name not in left_out
            and (include is None or name in include)
            and (not only_set or name in self.model_fields_set)
        ]
        made = {name: getattr(self, name) for name in names}
        return {name: value for name, value in made.items() if not (no_none and value is None)}

    def _backend_extensions(self, left_out: set[str]) -> dict[str, Any]:
        if self._passed_through is not None:
            return dict(self._passed_through)
        shown = self if not left_out else self.model_copy(update=dict.fromkeys(left_out, None))
        if self.backend is BackendType.AIC:
            known = aic.to_backend_extension_dict(shown.compiler_custom_configs)
        else:
            known = extension_json.sections_to_dict(shown)
        return {**known, **self._others}

    def to_backend_extension_json(self, *, indent: int = 4) -> str:
        """Return the back-end extension dictionary as JSON text."""
        return json.dumps(self.model_dump(context={"backend_extensions": True}), indent=indent)

    def populate_from_backend_extensions(
        self, path: str | os.PathLike[str], *, passthrough: bool = False, allow_aic: bool = False
    ) -> Self:
        """Copy the options of a back-end extension file to this configuration.

        Parameters
        ----------
        path
            JSON file, or a file that refers to it under ``backend_extensions``.
        passthrough
            Keep the content without reading it; it is then the dictionary of this configuration.
        allow_aic
            Also accept the back end ``AIC``, whose file is flat. By default, only ``HTP`` is accepted, as
            QAIRT documents.

        Returns
        -------
        CompileConfig
            This configuration, for chaining. The file overwrites fields, with a warning. Keys without a
            field are kept and written back.

        Raises
        ------
        FileNotFoundError
            The file does not exist.
        qaic.errors.OptionError
            The back end has no such files, or the file is invalid. The configuration does not change. Also
            a ``ValueError``.
        """
        if not (allow_aic and self.backend is BackendType.AIC):
            require_htp(self.backend, "populate_from_backend_extensions")
        data = extension_json.read_extension_file(path)
        if passthrough:
            _LOG.warning(
                "%s is passed through: its options are not checked, and fields do not change them", path
            )
            self._passed_through = data
            return self
        fields: dict[str, Any]
        if self.backend is BackendType.AIC:
            compiler, others = aic.from_backend_extension_dict(data, place=str(path))
            fields = {"compiler_custom_configs": compiler} if compiler.model_fields_set else {}
        else:
            fields, others = extension_json.sections_from_dict(data, self.backend, Path(path))
        overwritten = [name for name in fields if getattr(self, name) is not None]
        if overwritten:
            _LOG.warning("%s overwrites %s", path, ", ".join(overwritten))
        for name, value in fields.items():
            setattr(self, name, value)
        self._others = others
        self._passed_through = None
        return self

    @classmethod
    def from_backend_extensions(
        cls,
        backend: BackendType | str,
        path: str | os.PathLike[str],
        *,
        passthrough: bool = False,
        allow_aic: bool = False,
        **fields: Any,
    ) -> Self:
        """Create a configuration from a back-end extension file.

        Parameters
        ----------
        backend, **fields
            As for the constructor.
        path, passthrough, allow_aic
            As for `populate_from_backend_extensions`.
        """
        config = cls(backend=backend, **fields)
        return config.populate_from_backend_extensions(path, passthrough=passthrough, allow_aic=allow_aic)

    # --- modes ----------------------------------------------------------------------------------------------

    def set_mode(self, mode: CompilerModes | str, **keywords: Any) -> Self:
        """Apply a named group of settings, for HTP only.

        Parameters
        ----------
        mode
            ``"weight_sharing"``; see `CompilerModes`.
        **keywords
            Keywords of the function of the mode, `CompilerModeSetters.set_weight_sharing`.

        Raises
        ------
        qaic.errors.OptionError
            The mode or the target is unknown, or the back end is not HTP. Also a ``ValueError``.
        TypeError
            The mode has no such keyword.
        """
        names = CompilerModes.list_options()
        if str(mode) not in names:
            raise OptionError(
                f"mode: found {str(mode)!r}, expected one of {', '.join(names)}",
                code="option.invalid_value",
                context={"options": ["mode"], "found": str(mode), "expected": names},
            )
        require_htp(self.backend, f"the mode {mode}")
        CompilerModeSetters.set_weight_sharing(self, **keywords)
        return self

    @property
    def ensure_graphs(self) -> bool:
        """Return True if the graph options apply to all graphs of the model, whose names are filled in."""
        return self._ensure_graphs

    def mark_graphs(self, *, ensure: bool) -> None:
        """Set `ensure_graphs`."""
        self._ensure_graphs = ensure

    # --- for the compiler -----------------------------------------------------------------------------------

    @property
    def other_options(self) -> dict[str, Any]:
        """Return settings of the extension file without a field; all settings if it was passed through."""
        return dict(self._others if self._passed_through is None else self._passed_through)

    @property
    def log_level_number(self) -> int:
        """Level of Python's logging for ``log_level``."""
        return LOG_LEVELS[self.log_level or "error"]

    @property
    def fields_without_effect(self) -> tuple[str, ...]:
        """Fields that are set but have no effect on a compilation for AIC."""
        names = (
            *extension_json.FIELDS.values(),
            "enable_backend_trace",
            "io_tensor_mem_type",
            "module_format",
            "op_packages",
            "soc_configs",
        )
        fields = type(self).model_fields
        return tuple(name for name in names if getattr(self, name) not in (fields[name].default, None))

    @property
    def backend_binary_file(self) -> Path | None:
        """Path of the back-end binary for ``backend_binary_path``; ``None`` if it is not set.

        Examples
        --------
        >>> from qaic.configs import CompileConfig
        >>> CompileConfig(backend="AIC", backend_binary_path="myqpc.bin").backend_binary_file.name
        'myqpc_backend.bin'
        """
        if self.backend_binary_path is None:
            return None
        path = Path(self.backend_binary_path)
        stem = path.name.removesuffix(".bin")
        return path.with_name((stem if stem.endswith(_STEM_SUFFIX) else stem + _STEM_SUFFIX) + ".bin")


#: Name of the class in some examples of QAIRT's documentation.
CompilerConfig = CompileConfig


def to_tool_options(
    config: CompileConfig, directory: str | os.PathLike[str] | None = None, *, prefix: str = ""
) -> dict[str, Any]:
    """Return the options dictionary of a configuration for AIC.

    Parameters
    ----------
    config
        Configuration of the back end ``AIC``.
    directory
        Existing folder for the file ``<prefix>aic_extensions.json``, to which the dictionary then refers.
        ``None``: the dictionary contains the options.
    prefix
        Beginning of the file's name.

    Raises
    ------
    qaic.errors.OptionError
        The back end is not ``AIC``.
    OSError
        The file cannot be written.
    """
    if config.backend is not BackendType.AIC:
        raise OptionError(
            f"to_tool_options: found the backend {config.backend}, expected AIC",
            code="option.backend",
            context={"found": str(config.backend), "expected": ["AIC"]},
        )
    extensions: dict[str, Any] = {"shared_library_path": aic.shared_library_path()}
    if directory is None:
        extensions["config_dict"] = config.model_dump(context={"backend_extensions": True})
    else:
        file = Path(directory) / f"{prefix}aic_extensions.json"
        text = config.to_backend_extension_json() + "\n"

        def write(aside: Path) -> None:
            aside.write_text(text, encoding="utf-8")

        write_replacing(file, write)
        extensions["config_file_path"] = str(file)
    return {"backend_extensions": extensions}
