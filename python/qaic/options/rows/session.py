"""Options about the handling of other options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from qaic.options.codecs.scalars import Enum, FilePath
from qaic.options.spec import Effect, Flag, option, switch


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """Options about the handling of other options."""

    SECTION: ClassVar = "Session"

    model_path: Path | None = option(
        FilePath("model"),
        None,
        "Model to compile (`.onnx`) or container to load (`.bin`).",
        flag=Flag("m", others=("model",)),
    )
    options_path: Path | None = option(
        FilePath("YAML file"), None, "YAML file with options; keyword arguments take precedence.", flag=None
    )
    backend: str = option(
        Enum("aic", "qaic"), "aic", "Backend; both values are equivalent.", Effect.VALIDATED, flag=None
    )
    compile: bool = switch("Compile the model; false requires a compiled container.", default=True, flag=None)
    strict_options: bool = switch(
        "Refuse a YAML file with unknown keys or keys for tools only; otherwise, they cause a warning.",
        ours=True,
    )
