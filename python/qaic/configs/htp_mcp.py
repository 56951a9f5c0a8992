"""Configurations of the HTP MCP back end, kept as data."""

from qaic.configs import htp
from qaic.configs.base import OpenModel


class HtpMcpGraphConfig(OpenModel):
    """Options of one graph; every keyword is kept as it is given."""


class HtpMcpContextConfig(OpenModel):
    """Options of a context; every keyword is kept as it is given."""


class HtpMcpDeviceConfig(OpenModel):
    """Options of a device; every keyword is kept as it is given."""


#: Section of the JSON file -> class.
SECTIONS: dict[str, type[OpenModel]] = {
    "context": HtpMcpContextConfig,
    "graphs": HtpMcpGraphConfig,
    "devices": HtpMcpDeviceConfig,
}


def list_options() -> None:
    """Print the sections of a configuration, one per line; see `qaic.configs.htp.list_options`."""
    htp.list_options(SECTIONS)
