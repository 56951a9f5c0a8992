"""Finds the checkpoint of a model without weights.

A path of such a model is relative to the folder that the environment names or to the model's folder; the
first match is used. A file outside of both is never read, even through a link, with two exceptions. The
exporter leaves a link in the model's folder to the checkpoint that the model names. In the cache of a model
hub every file is a link from ``models--NAME/snapshots`` to ``models--NAME/blobs``.
"""

from pathlib import Path
from typing import Final

from qaic.compiler.diagnostics.compile_error import refuse
from qaic.compiler.frontend.files.external_data import DataFiles
from qaic.compiler.frontend.files.safetensors_file import StoredTensor, read_tensors
from qaic.compiler.frontend.files.weight_spec import WeightPlace

#: environment variable with the folder that is searched first
DATA_ROOT: Final = "AIC_EXTERNAL_DATA_ROOT"


class CheckpointFiles:
    """The safetensors files of one model; each is opened and checked once.

    `folders` are the resolved folders of the model file, at least one. `model_id` is the path of the
    checkpoint where the model was exported, or a name. Files that are found are added to `data`. Raises
    OSError if a folder cannot be searched.
    """

    def __init__(self, folders: tuple[Path, ...], model_id: str, data: DataFiles) -> None:
        self._data = data
        roots = []
        named = data.variable(DATA_ROOT)
        if named:
            roots.append(data.absolute(_expanded(named)))
        roots += folders
        self._roots = list(dict.fromkeys(roots))
        self._exported_to = ""
        real = [found for root in self._roots if (found := data.find(root)) is not None]
        if model_id and "\0" not in model_id:
            checkpoint = data.absolute(_expanded(model_id))
            self._exported_to = f", as {str(checkpoint.parent)!r} of the exporter"
            found = data.find(checkpoint)
            # A path in the model is searched only if a link next to the model leads to it.
            if found is not None and any(data.find(folder / checkpoint.name) == found for folder in folders):
                real.append(found)
        self._allowed = [*real, *(blobs for root in real for blobs in _blobs(root))]
        self._paths: dict[str, Path] = {}
        self._tensors: dict[Path, dict[str, StoredTensor]] = {}

    def tensor(self, place: WeightPlace) -> StoredTensor:
        """Find the values of an input.

        Raises CompileError if there is no such file in the folders, the file is not valid, or it has no such
        tensor; OSError if it cannot be opened.
        """
        what = f"weights of input {place.input_name!r}"
        path = self._paths.get(place.file)
        if path is None:
            path = self._paths[place.file] = self._resolved(place.file, what)
        tensors = self._tensors.get(path)
        if tensors is None:
            tensors = self._tensors[path] = read_tensors(self._data.opened(path))
        found = tensors.get(place.key)
        if found is None:
            raise refuse(
                what,
                code="external_data",
                found=f"no tensor {place.key!r} in {str(path)!r}",
                expected=f"one of its {len(tensors)} tensors",
                fix="the checkpoint belongs to another model, or export the model again",
            )
        return found

    def _resolved(self, file: str, what: str) -> Path:
        written = Path(file)
        if not file or ".." in written.parts or "\0" in file:
            raise refuse(
                what,
                code="external_data",
                found=f"file {file!r}",
                expected="a path without '..'",
                fix=f"export the model again, or set {DATA_ROOT} to the folder of the checkpoint",
            )
        # An absolute path does not depend on the root.
        for root in self._roots:
            real = self._data.find(root / written)
            if real is None:
                continue
            if not any(real.is_relative_to(folder) for folder in self._allowed):
                raise refuse(
                    what,
                    code="external_data",
                    found=f"file {file!r}, a link to {str(real)!r}",
                    expected=f"a file in {self._listed()}",
                    fix=f"set {DATA_ROOT} to its folder",
                )
            return real
        raise refuse(
            what,
            code="external_data",
            found=f"no file {file!r} in {self._listed()}",
            expected="the checkpoint of the model",
            fix=f"set {DATA_ROOT} to the folder that contains {file!r}{self._exported_to}",
        )

    def _listed(self) -> str:
        return ", ".join(repr(str(root)) for root in self._roots)


def _expanded(path: str) -> Path:
    """Expand a home folder; the path stays as it is if the user does not exist."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _blobs(root: Path) -> list[Path]:
    """Return the folders of the files that a hub's snapshot links to, for a folder in a snapshot."""
    return [
        folder / "blobs"
        for folder in (root, *root.parents)
        if folder.name.startswith("models--") and root.is_relative_to(folder / "snapshots")
    ]
