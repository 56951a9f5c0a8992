"""The model of the demo: Magika's file-type classifier, a trained 3 MB ONNX model in the package ``magika``.

Features (Magika's model card): up to 1024 bytes from the start of a file and 1024 from its end, white space
stripped, padded with the token 256.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qaic.errors import StateError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NEWEST_KNOWN = "standard_v3_3"


@dataclass(frozen=True)
class FileTypeModel:
    """The model file and the preparation of its inputs."""

    path: Path
    labels: tuple[str, ...]
    begin_bytes: int
    end_bytes: int
    block_bytes: int
    padding: int
    smallest_file_bytes: int

    @classmethod
    def installed(cls) -> FileTypeModel:
        """Find the model in the installed package, without importing it.

        Raises
        ------
        StateError
            The package is not installed.
        """
        spec = importlib.util.find_spec("magika")
        folders = list(spec.submodule_search_locations or ()) if spec else []
        models = sorted(
            path.parent for folder in folders for path in Path(folder).glob("models/*/model.onnx")
        )
        if not models:
            raise StateError(
                "the demo's model is not installed: no package magika with a model.onnx was found",
                code="demo.model_missing",
                hints=("pip install magika",),
            )
        folder = next((path for path in models if path.name == _NEWEST_KNOWN), models[-1])
        config = json.loads((folder / "config.min.json").read_text())
        return cls(
            path=folder / "model.onnx",
            labels=tuple(config["target_labels_space"]),
            begin_bytes=config["beg_size"],
            end_bytes=config["end_size"],
            block_bytes=config["block_size"],
            padding=config["padding_token"],
            smallest_file_bytes=config["min_file_size_for_dl"],
        )

    def features(self, path: Path) -> NDArray[np.int32] | None:
        """Features of one file, int32 of shape (1, begin + end); ``None`` for a file that is too small."""
        with path.open("rb") as file:
            first = file.read(self.block_bytes)
            size = path.stat().st_size
            file.seek(max(0, size - self.block_bytes))
            last = file.read(self.block_bytes)
        begin = first.lstrip()[: self.begin_bytes]
        end = last.rstrip()[-self.end_bytes :]
        if len(begin) < self.smallest_file_bytes:
            return None
        tokens = np.full(self.begin_bytes + self.end_bytes, self.padding, np.int32)
        tokens[: len(begin)] = np.frombuffer(begin, np.uint8)
        tokens[len(tokens) - len(end) :] = np.frombuffer(end, np.uint8)
        return tokens.reshape(1, -1)
