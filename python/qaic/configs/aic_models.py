"""``AicCompilerConfig`` and ``AicRuntimeConfig``, created from the option table.

Type checkers and editors read ``aic_models.pyi``, which `make docs` generates from the same table.
"""

import os
import sys
from collections.abc import Iterator
from typing import Any, Literal, get_args

from pydantic import Field, ValidationError, create_model
from pydantic_core import InitErrorDetails

from qaic.configs.base import ConfigModel, custom_error
from qaic.options.spec import AicField, JsonForm, OptionSpec, Stage
from qaic.options.table import SPECS

_TYPES: dict[JsonForm, Any] = {
    JsonForm.BOOL: bool,
    JsonForm.INT: int,
    JsonForm.FLOAT: float,
    JsonForm.TEXT: str,
    JsonForm.SPACED: str,
    JsonForm.TARGET: str,
    JsonForm.NAMES: list[str],
    JsonForm.IDS: list[int],
}


class AicConfig(ConfigModel):
    """Base of both classes.

    The constructor accepts field names and, unlike that of QAIRT, the keys of the back-end extension file.
    """

    def __init__(self, /, **data: Any) -> None:
        by_key = {spec.json_key: name for name, spec in fields_of(type(self)).items()}
        given: dict[str, Any] = {}
        twice: list[InitErrorDetails] = []
        for key, value in data.items():
            name = by_key.get(key, key)
            if name in given:
                kind = custom_error("given_twice", "the field is given by its name and by its JSON key")
                twice.append(InitErrorDetails(type=kind, loc=(name,), input=value))
            given[name] = value
        if twice:
            raise ValidationError.from_exception_data(type(self).__name__, twice)
        super().__init__(**given)

    @classmethod
    def list_config_options(cls) -> None:
        """Print the fields of both classes; see `AicConfigHelper.list_config_options`."""
        list_config_options()


def rows(stage: Stage) -> Iterator[tuple[OptionSpec, AicField]]:
    """Yield the rows that are fields of one of the classes, in the order of the field names."""
    found = [(spec, spec.aic) for spec in SPECS if spec.aic is not None and spec.stage is stage]
    yield from sorted(found, key=lambda row: row[1].name)


def annotation(field: AicField) -> Any:
    """Return the type of a field. None counts as "not set"."""
    if field.choices:
        return Literal[field.choices] | None
    if field.name == "exclude_mxfp6_matmul":
        return str | list[str] | None
    if field.name.startswith("mdp_") and field.form is JsonForm.TEXT:
        return str | os.PathLike[str] | None
    return _TYPES[field.form] | None


def _made(name: str, stage: Stage, summary: str) -> Any:
    definitions: dict[str, Any] = {
        field.name: (
            annotation(field),
            Field(
                default=list(field.default) if isinstance(field.default, tuple) else field.default,
                description=spec.summary,
                serialization_alias=field.json_key,
            ),
        )
        for spec, field in rows(stage)
    }
    return create_model(name, __base__=AicConfig, __module__=__name__, __doc__=summary, **definitions)


AicCompilerConfig = _made(
    "AicCompilerConfig",
    Stage.COMPILE,
    """Options of the AIC compiler.

    Only fields that are set count, in the constructor or later; the defaults are those of the
    documentation, which no compiler has. Values are checked when they are used, not here.
    ``docs/reference/options.md`` has the meaning and the limits of each field, under its option.

    Raises
    ------
    pydantic.ValidationError
        A field is unknown or has another type. A ``ValueError``.

    Examples
    --------
    >>> from qaic.configs import AicCompilerConfig
    >>> config = AicCompilerConfig(num_of_cores=4)
    >>> config.convert_to_fp16 = True
    >>> sorted(config.model_fields_set)
    ['convert_to_fp16', 'num_of_cores']
    """,
)

AicRuntimeConfig = _made(
    "AicRuntimeConfig",
    Stage.RUNTIME,
    """Options of loading and running a program; otherwise as `AicCompilerConfig`.

    Examples
    --------
    >>> from qaic.configs import AicRuntimeConfig
    >>> AicRuntimeConfig(device_ids=[0, 1]).num_activations
    1
    """,
)

_ROWS: dict[type, dict[str, AicField]] = {
    AicCompilerConfig: {field.name: field for _, field in rows(Stage.COMPILE)},
    AicRuntimeConfig: {field.name: field for _, field in rows(Stage.RUNTIME)},
}


def fields_of(model: type[AicConfig]) -> dict[str, AicField]:
    """Return the fields of one of the two classes, or of a class derived from one, by name."""
    for kind in model.__mro__:
        if kind in _ROWS:
            return _ROWS[kind]
    raise TypeError(f"{model.__name__} is neither AicCompilerConfig nor AicRuntimeConfig")


def list_config_options() -> None:
    """Print one line per field: class, field and type."""
    for kind in (AicCompilerConfig, AicRuntimeConfig):
        for name, field in fields_of(kind).items():
            sys.stdout.write(f"{kind.__name__}.{name}: {type_text(annotation(field))}\n")


def type_text(kind: Any, *, optional: bool = False) -> str:
    """Return the source text of a type; ``None``, which every field accepts, only if ``optional``."""
    parts = [part for part in get_args(kind) if part is not type(None)]
    text = " | ".join(part.__name__ if type(part) is type else str(part) for part in parts)
    text = text.replace("typing.", "")
    return f"{text} | None" if optional else text
