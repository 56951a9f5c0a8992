"""Open user-space stack for Qualcomm Cloud AI 100.

>>> import qaic
>>> session = qaic.Session("model.onnx")  # doctest: +SKIP
>>> outputs = session.run({"x": array})  # doctest: +SKIP

``Session`` compiles an ONNX model, or opens a compiled container, and runs it. ``compile`` only compiles, and
``CompileOptions`` contains its options. ``check`` forecasts whether a card supports a model, and its speed.
``Qpc`` reads a container, and ``stats`` reads the measurements of a device. ``devices`` and ``Util`` describe
devices. ``accuracy`` finds precision loss. ``configs`` has the configuration classes of the QAIRT Python API.
Every exception is a :class:`qaic.errors.QaicError`, except errors of the system about files.
"""

# Nothing is imported here, so that commands handle Ctrl-C early; `typing` is large.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from qaic import accuracy, compat, configs, errors, stats
    from qaic._core import __version__
    from qaic.compilation import compile  # noqa: A004
    from qaic.compile_options import CompileOptions
    from qaic.device_claim import claim_devices
    from qaic.device_list import devices
    from qaic.forecast import check
    from qaic.qpc import Qpc
    from qaic.rt import InferenceBenchmarkSet, Util
    from qaic.session import Session

__all__ = [
    "CompileOptions",
    "InferenceBenchmarkSet",
    "Qpc",
    "Session",
    "Util",
    "__version__",
    "accuracy",
    "check",
    "claim_devices",
    "compat",
    "compile",
    "configs",
    "devices",
    "errors",
    "stats",
]

# Loaded on first use, so `import qaic` imports no other module.
_HOMES = {
    "__version__": "qaic._core",
    "CompileOptions": "qaic.compile_options",
    "InferenceBenchmarkSet": "qaic.rt",
    "Qpc": "qaic.qpc",
    "Session": "qaic.session",
    "Util": "qaic.rt",
    "check": "qaic.forecast",
    "claim_devices": "qaic.device_claim",
    "compile": "qaic.compilation",
    "devices": "qaic.device_list",
}

_SUBMODULES = frozenset({"accuracy", "compat", "configs", "errors", "stats"})


def __getattr__(name: str) -> object:
    """Load a public name from its home on first use."""
    from importlib import import_module

    if name in _HOMES:
        value: object = getattr(import_module(_HOMES[name]), name)
    elif name in _SUBMODULES:
        value = import_module(f"qaic.{name}")
    else:
        raise AttributeError(f"module 'qaic' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return sorted(__all__)
