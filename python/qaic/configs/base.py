"""The base of all configuration classes, and the back ends that QAIRT knows by name.

Unknown fields are refused, with the nearest known one.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from qaic.support.text import nearest_name


class ConfigModel(BaseModel):
    """Base of the configurations whose fields are known."""

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, arbitrary_types_allowed=True, populate_by_name=True
    )

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise _with_nearest(error, type(self).model_fields) from None

    def __setattr__(self, name: str, value: Any) -> None:
        fields = type(self).model_fields
        if name not in fields and not name.startswith("_") and not hasattr(type(self), name):
            unknown = InitErrorDetails(type=_unknown(name, fields), loc=(name,), input=value)
            raise ValidationError.from_exception_data(type(self).__name__, [unknown])
        super().__setattr__(name, value)


if TYPE_CHECKING:

    class OpenModel:
        """The view of type checkers, which would take a pydantic model's fields for all its keywords."""

        def __init__(self, /, **data: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def as_given(self) -> dict[str, Any]: ...  # noqa: D102

else:

    class OpenModel(BaseModel):
        """Base of configurations that are kept as given: any keyword is a field."""

        model_config = ConfigDict(extra="allow", validate_assignment=True, arbitrary_types_allowed=True)

        def as_given(self) -> dict[str, Any]:
            """Return the keywords that were given, unconverted; nothing is added."""
            return dict(self.model_extra or {})


def custom_error(kind: str, text: str) -> PydanticCustomError:
    """Build a finding with words of ours."""
    # The text goes in as a value: it may hold braces, which are templates to pydantic.
    return PydanticCustomError(kind, "{text}", {"text": text})


def _with_nearest(error: ValidationError, fields: Iterable[str]) -> ValidationError:
    """Add to each unknown field the nearest known one; other findings are unchanged."""
    details: list[InitErrorDetails] = []
    for found in error.errors():
        kind: str | PydanticCustomError = found["type"]
        context = found.get("ctx", {})
        if "text" in context:
            # One of ours, from a configuration inside this one.
            kind = custom_error(found["type"], context["text"])
        elif kind == "extra_forbidden" and len(found["loc"]) == 1:
            kind = _unknown(str(found["loc"][0]), fields)
        detail = InitErrorDetails(type=kind, loc=found["loc"], input=found["input"])
        if isinstance(kind, str) and context:
            detail["ctx"] = context
        details.append(detail)
    return ValidationError.from_exception_data(error.title, details)


def _unknown(name: str, fields: Iterable[str]) -> PydanticCustomError:
    near = nearest_name(name, fields)
    hint = f"; did you mean {near}?" if near else ""
    return custom_error("extra_forbidden", f"there is no such field{hint}")


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
