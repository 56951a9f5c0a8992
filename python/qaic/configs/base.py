"""Base of all configuration classes, and the names of QAIRT's back ends.

Unknown fields are refused; the error suggests the nearest field.
"""

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
        """Declaration for type checkers, which accept only the fields of a pydantic model as keywords."""

        def __init__(self, /, **data: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def as_given(self) -> dict[str, Any]: ...  # noqa: D102

else:

    class OpenModel(BaseModel):
        """Base of configurations that accept any keyword as a field and do not change its value."""

        model_config = ConfigDict(extra="allow", validate_assignment=True, arbitrary_types_allowed=True)

        def as_given(self) -> dict[str, Any]:
            """Return the given keywords and values without changes."""
            return dict(self.model_extra or {})


def custom_error(kind: str, text: str) -> PydanticCustomError:
    """Create an error with a text of this package."""
    # The text is a value of the template, because braces in a template have a meaning for pydantic.
    return PydanticCustomError(kind, "{text}", {"text": text})


def _with_nearest(error: ValidationError, fields: Iterable[str]) -> ValidationError:
    """Add the nearest field to the error about each unknown field; other errors do not change."""
    details: list[InitErrorDetails] = []
    for found in error.errors():
        kind: str | PydanticCustomError = found["type"]
        context = found.get("ctx", {})
        if "text" in context:
            # The error was created by `custom_error`, for a configuration inside this one.
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
    def offline_preparable_backends(cls) -> "list[BackendType]":
        """Return the back ends for which the vendor's tools can compile a model ahead of time."""
        return [cls.HTP, cls.AIC, cls.HTP_MCP, cls.LPAI]
