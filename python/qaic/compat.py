"""Provides the configuration classes under QAIRT's module paths, for code that imports them from there.

>>> import qaic.compat
>>> qaic.compat.install_qairt()
>>> from qairt.api.compiler.config import CompileConfig
>>> CompileConfig(backend="AIC").backend.value
'AIC'
>>> qaic.compat.uninstall_qairt()

The paths exist only in this process, from the call of ``install_qairt`` on; no file is written. Other parts
of QAIRT, such as conversion and execution, are not available.
"""

import importlib
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable
from types import ModuleType

from qaic.errors import StateError

_AIC = (
    "AicCompilerConfig",
    "AicConfigHelper",
    "AicRuntimeConfig",
    "list_config_options",
    "list_config_types",
    "shared_library_path",
    "to_backend_extension_dict",
)
_HTP = ("HtpContextConfig", "HtpDeviceConfig", "HtpGraphConfig", "HtpGroupContextConfig", "HtpMemoryConfig")
_HTP_MCP = ("HtpMcpContextConfig", "HtpMcpDeviceConfig", "HtpMcpGraphConfig")
_COMPILER = ("CompileConfig", "CompilerConfig", "CompilerModeSetters", "CompilerModes")

#: Module -> module of `qaic.configs` that defines its names, "" for the package itself, and the names.
_MODULES: dict[str, tuple[str, tuple[str, ...]]] = {
    "qairt": ("", ("CompileConfig",)),
    "qairt.api": ("", ()),
    "qairt.api.common": ("", ()),
    "qairt.api.common.backends": ("", ()),
    "qairt.api.common.backends.aic": ("", _AIC),
    "qairt.api.common.backends.aic.config": ("", _AIC),
    "qairt.api.common.backends.htp": ("htp", (*_HTP, "list_options")),
    "qairt.api.common.backends.htp.config": ("htp", (*_HTP, "list_options")),
    "qairt.api.common.backends.htp_mcp": ("htp_mcp", (*_HTP_MCP, "list_options")),
    "qairt.api.common.backends.htp_mcp.config": ("htp_mcp", (*_HTP_MCP, "list_options")),
    "qairt.api.compiler": ("", _COMPILER),
    "qairt.api.compiler.config": ("", (*_COMPILER, "AicCompilerConfig")),
    "qairt.api.configs": ("", ()),
    "qairt.api.configs.common": ("", ("BackendType", "OpPackageIdentifier")),
}

_ROOT = "qairt"
_lock = threading.Lock()


class _Facade(ModuleType):
    """A module of this package with a name of QAIRT."""


def install_qairt() -> None:
    """Make the configuration classes importable under the module paths of QAIRT, in this process.

    Calling it again changes nothing. Thread-safe.

    Raises
    ------
    qaic.errors.StateError
        QAIRT itself is installed, and its classes must not be mixed with these. Also a ``RuntimeError``.
    """
    with _lock:
        if isinstance(sys.modules.get(_ROOT), _Facade):
            return
        where = _real_package()
        if where is not None:
            raise StateError(
                f"the package {_ROOT} is installed ({where}), so openqaic does not replace its names",
                code="compat.qairt_present",
                context={"package": _ROOT, "path": where},
                hints=("import the classes from qaic.configs, or uninstall the other package",),
            )
        made = {name: _facade(name, home, names) for name, (home, names) in _MODULES.items()}
        for name, module in made.items():
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(made[parent], child, module)
        # One update adds all modules, so an import in another thread finds all of them or none.
        sys.modules.update(made)


def uninstall_qairt() -> None:
    """Undo `install_qairt`, if it was called; imported names stay usable."""
    with _lock:
        if isinstance(sys.modules.get(_ROOT), _Facade):
            for name in _MODULES:
                sys.modules.pop(name, None)


def _real_package() -> str | None:
    """Return the path of QAIRT itself, loaded or not; None for a folder that only has its name."""
    present = sys.modules.get(_ROOT)
    if present is not None:
        return str(getattr(present, "__file__", None) or "already imported")
    spec = importlib.util.find_spec(_ROOT)
    return None if spec is None else spec.origin


def _facade(name: str, home: str, names: tuple[str, ...]) -> ModuleType:
    is_package = any(other.startswith(f"{name}.") for other in _MODULES)
    module = _Facade(name, f"Names of `qaic.configs` under {name}; see `qaic.compat`.")
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=is_package)
    module.__package__ = name if is_package else name.rpartition(".")[0]
    if is_package:
        module.__path__ = []
    module.__dict__["__all__"] = list(names)
    module.__dict__["__getattr__"] = _loader(name, home, names)
    module.__dict__["__dir__"] = lambda: sorted(names)
    return module


def _loader(module: str, home: str, names: tuple[str, ...]) -> Callable[[str], object]:
    def load(name: str) -> object:
        if name not in names:
            message = (
                f"module {module!r} has no attribute {name!r}; it is the part of QAIRT that qaic.compat has, "
                "configurations only"
            )
            raise AttributeError(message)
        configs = importlib.import_module(f"qaic.configs.{home}" if home else "qaic.configs")
        value: object = getattr(configs, name)
        return value

    return load
