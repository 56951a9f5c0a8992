"""The back ends that QAIRT knows by name."""

from __future__ import annotations

import enum


class BackendType(enum.StrEnum):
    """Name of a back end. Members are equal to their text: ``BackendType.AIC == "AIC"``."""

    CPU = "CPU"
    GPU = "GPU"
    HTP = "HTP"
    HTP_MCP = "HTP_MCP"
    AIC = "AIC"
    LPAI = "LPAI"

    @classmethod
    def offline_preparable_backends(cls) -> list[BackendType]:
        """Return the back ends a model can be compiled for ahead of time, in the vendor's tools."""
        return [cls.HTP, cls.AIC, cls.HTP_MCP, cls.LPAI]
