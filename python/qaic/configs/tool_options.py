"""The options dictionary that the vendor's tools read together with a model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qaic.configs import aic
from qaic.configs.backend_types import BackendType
from qaic.errors import OptionError
from qaic.support.atomic_io import write_replacing
from qaic.support.lazy_module import LazyModule

if TYPE_CHECKING:
    from qaic.configs import compile_config
else:
    compile_config = LazyModule("qaic.configs.compile_config")


def to_tool_options(
    config: compile_config.CompileConfig, directory: str | os.PathLike[str] | None = None, *, prefix: str = ""
) -> dict[str, Any]:
    """Return the options dictionary of a configuration for AIC.

    Parameters
    ----------
    config
        Configuration of the back end ``AIC``.
    directory
        Existing folder for the file ``<prefix>aic_extensions.json``, which the dictionary then names.
        Without it the options are in the dictionary itself.
    prefix
        Beginning of the file's name.

    Raises
    ------
    qaic.errors.OptionError
        The back end is another one.
    OSError
        The file cannot be written.
    """
    if config.backend is not BackendType.AIC:
        raise OptionError(
            f"to_tool_options: found the backend {config.backend}, expected AIC",
            code="option.backend",
            context={"found": str(config.backend), "expected": ["AIC"]},
        )
    extensions: dict[str, Any] = {"shared_library_path": aic.shared_library_path()}
    if directory is None:
        extensions["config_dict"] = config.model_dump(context={"backend_extensions": True})
    else:
        file = Path(directory) / f"{prefix}aic_extensions.json"
        text = config.to_backend_extension_json() + "\n"

        def write(aside: Path) -> None:
            aside.write_text(text, encoding="utf-8")

        write_replacing(file, write)
        extensions["config_file_path"] = str(file)
    return {"backend_extensions": extensions}
