"""The stub of the generated classes, ``python/qaic/configs/aic_models.pyi``.

The classes are created from the option table at their first use, which type checkers cannot follow. The stub
is committed; a test compares it with the output of this module.
"""

from __future__ import annotations

import sys

from qaic.configs.aic_models import annotation, rows, type_text
from qaic.options.spec import Stage

_HEAD = """\
# Written by `make docs`. Edit the option table, not this file.

import os
from collections.abc import Iterator
from typing import Any, Literal

from qaic.configs.base import ConfigModel
from qaic.options.spec import AicField, OptionSpec, Stage

class AicConfig(ConfigModel):
    @classmethod
    def list_config_options(cls) -> None: ...

def rows(stage: Stage) -> Iterator[tuple[OptionSpec, AicField]]: ...
def annotation(field: AicField) -> Any: ...
def fields_of(model: type[AicConfig]) -> dict[str, AicField]: ...
def list_config_options() -> None: ...
def type_text(kind: Any, *, optional: bool = False) -> str: ...
"""


def render() -> str:
    """Return the stub."""
    parts = [_HEAD]
    for name, stage in (("AicCompilerConfig", Stage.COMPILE), ("AicRuntimeConfig", Stage.RUNTIME)):
        fields = [
            (field.name, type_text(annotation(field), optional=True).replace("'", '"'))
            for _, field in rows(stage)
        ]
        parts += [f"\nclass {name}(AicConfig):\n"]
        parts += [f"    {field}: {kind}\n" for field, kind in fields]
        parts += ["    def __init__(\n        self,\n        /,\n        *,\n"]
        parts += [f"        {field}: {kind} = ...,\n" for field, kind in fields]
        parts += ["        **data: Any,\n    ) -> None: ...\n"]
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(render())
