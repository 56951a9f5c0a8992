"""Configuration classes of the QAIRT Python API for Cloud AI 100.

Code for QAIRT describes a compilation by a :class:`CompileConfig` with an :class:`AicCompilerConfig`.
``qaic.compile(model, config)`` accepts both; their fields are compile options under QAIRT's names. Their JSON
form is the back-end extension file of the SDK's tools. Configurations for other back ends (HTP, HTP MCP,
LPAI) can be checked, read and written, but ``qaic.compile`` refuses them.

>>> from qaic.configs import AicCompilerConfig, AicConfigHelper
>>> config = AicCompilerConfig(num_of_cores=4, convert_to_fp16=True)
>>> AicConfigHelper.to_backend_extension_dict(config)
{'compiler_convert_to_FP16': True, 'compiler_num_of_cores': 4}

The first use of a class imports pydantic; the import of this module does not.
"""

from typing import TYPE_CHECKING

from qaic.support.lazy_module import lazy_door

if TYPE_CHECKING:
    from qaic.configs.aic import (
        AicConfigHelper,
        list_config_types,
        shared_library_path,
        to_backend_extension_dict,
    )
    from qaic.configs.aic_models import AicCompilerConfig, AicRuntimeConfig, list_config_options
    from qaic.configs.base import BackendType
    from qaic.configs.compile_config import (
        CompileConfig,
        CompilerConfig,
        OpPackageIdentifier,
        to_tool_options,
    )
    from qaic.configs.htp import (
        HtpContextConfig,
        HtpDeviceConfig,
        HtpGraphConfig,
        HtpGroupContextConfig,
        HtpMemoryConfig,
    )
    from qaic.configs.htp_mcp import HtpMcpContextConfig, HtpMcpDeviceConfig, HtpMcpGraphConfig
    from qaic.configs.modes import CompilerModes, CompilerModeSetters

__all__ = [
    "AicCompilerConfig",
    "AicConfigHelper",
    "AicRuntimeConfig",
    "BackendType",
    "CompileConfig",
    "CompilerConfig",
    "CompilerModeSetters",
    "CompilerModes",
    "HtpContextConfig",
    "HtpDeviceConfig",
    "HtpGraphConfig",
    "HtpGroupContextConfig",
    "HtpMcpContextConfig",
    "HtpMcpDeviceConfig",
    "HtpMcpGraphConfig",
    "HtpMemoryConfig",
    "OpPackageIdentifier",
    "list_config_options",
    "list_config_types",
    "shared_library_path",
    "to_backend_extension_dict",
    "to_tool_options",
]

__getattr__ = lazy_door(
    __name__,
    {
        ".aic_models": "AicCompilerConfig AicRuntimeConfig list_config_options",
        ".aic": "AicConfigHelper list_config_types shared_library_path to_backend_extension_dict",
        ".base": "BackendType",
        ".compile_config": "CompileConfig CompilerConfig OpPackageIdentifier to_tool_options",
        ".modes": "CompilerModeSetters CompilerModes",
        ".htp": "HtpContextConfig HtpDeviceConfig HtpGraphConfig HtpGroupContextConfig HtpMemoryConfig",
        ".htp_mcp": "HtpMcpContextConfig HtpMcpDeviceConfig HtpMcpGraphConfig",
    },
)


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return sorted(__all__)
