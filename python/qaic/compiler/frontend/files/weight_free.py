"""Models without weights: constant inputs of the graph, with their values in a checkpoint.

The inputs become initializers whose bytes are read from the checkpoint when the container is written, so
memory does not depend on their size.

A path of such a model is relative to the folder that the environment names or to the model's folder; the
first match is used. A file outside both folders is never read, even through a link, with two exceptions. The
exporter creates a link in the model's folder to the checkpoint that the model names. In the cache of a model
hub, every file is a link from ``models--NAME/snapshots`` to ``models--NAME/blobs``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import onnx

from qaic.compiler.diagnostics.messages import Diagnostic, listing, refuse
from qaic.compiler.frontend.files.external_data import DataFiles
from qaic.compiler.frontend.files.safetensors_file import TYPES, StoredTensor, read_tensors
from qaic.compiler.frontend.files.weight_spec import WeightPlace, WeightSpec, wrong_spec
from qaic.compiler.ir import elem_types
from qaic.compiler.ir.constants.float16_weights import Overflows, converted_floats
from qaic.compiler.ir.constants.weights import INLINE_LIMIT, TensorSource, Weight, read_all
from qaic.compiler.ir.value_info import type_and_dims
from qaic.support.text import counted

#: environment variable with the folder that is searched first
DATA_ROOT: Final = "AIC_EXTERNAL_DATA_ROOT"


class CheckpointFiles:
    """The safetensors files of one model; each is opened and checked once.

    `folders` are the resolved folders of the model file, at least one. `model_id` is the checkpoint's path
    during export, or a name. Files that are found are added to `data`. Searching may raise OSError.
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
                expected=f"one of its {counted(len(tensors), 'tensor')}",
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
    """Expand a home folder; the path does not change if the user does not exist."""
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


def take_weights(
    model: onnx.ModelProto,
    weights: dict[str, Weight],
    spec: WeightSpec,
    checkpoint: CheckpointFiles,
    overflows: Overflows,
) -> None:
    """Convert the inputs that a model lists as weights to constants.

    Small weights become initializers of `model`, and large ones are added to `weights`. The inputs stay,
    because they may also have an initializer. `overflows` counts values that the type of an input cannot
    represent. Raises CompileError if the graph has no such input, or its type or shape differ in the
    checkpoint, and OSError if a file cannot be opened.
    """
    graph = model.graph
    inputs = {value.name: value for value in graph.input}
    constants = {tensor.name for tensor in graph.initializer} | weights.keys()
    for place in spec.places:
        value = inputs.get(place.input_name)
        if value is None or place.input_name in constants:
            raise wrong_spec(
                f"input {place.input_name!r} in the model's list of weights",
                "an initializer of that name" if value is not None else "no input of the graph",
                "an input of the graph without a value",
            )
        stored = checkpoint.tensor(place)
        elem_type = _elem_type(place, value)
        _check_dims(place, value, stored)
        source = _source(place, stored, elem_type, overflows)
        weight = Weight(place.input_name, elem_type, stored.dims, source)
        if source.nbytes < INLINE_LIMIT:
            graph.initializer.append(
                onnx.TensorProto(
                    name=weight.name, data_type=elem_type, dims=weight.dims, raw_data=read_all(source)
                )
            )
        else:
            weights[weight.name] = weight


def overflow_warning(overflows: Overflows) -> Iterator[Diagnostic]:
    """Yield one warning about the values read so far that became infinite, if there are any."""
    if overflows.counts:
        yield Diagnostic(
            "warning",
            "weights.checkpoint_overflow",
            f"found {counted(sum(overflows.counts.values()), 'value')} of the checkpoint beyond the range of "
            "float16, the type of the model's inputs, which became infinite: "
            f"{listing(sorted(overflows.counts))}",
        )


def _elem_type(place: WeightPlace, value: onnx.ValueInfoProto) -> int:
    elem_type = value.type.tensor_type.elem_type
    if not value.type.HasField("tensor_type") or elem_type not in elem_types.TABLE:
        what = f"input {place.input_name!r} in the model's list of weights"
        raise wrong_spec(what, "a type other than a tensor", "a tensor of a known type")
    return elem_type


def _check_dims(place: WeightPlace, value: onnx.ValueInfoProto, stored: StoredTensor) -> None:
    _, declared = type_and_dims(value)
    if declared is None:
        return
    fits = len(declared) == len(stored.dims) and all(
        want is None or want < 0 or want == have for want, have in zip(declared, stored.dims, strict=True)
    )
    if not fits:
        raise refuse(
            f"weights of input {place.input_name!r}",
            code="external_data",
            found=f"shape {list(stored.dims)} of tensor {place.key!r} in {str(stored.source.file.path)!r}",
            expected=f"{['?' if size is None else size for size in declared]} as the input has",
            fix="the checkpoint belongs to another model, or the exporter must prepare it",
        )


def _source(place: WeightPlace, stored: StoredTensor, elem_type: int, overflows: Overflows) -> TensorSource:
    found = TYPES[stored.dtype][1]
    if found == elem_type:
        return stored.source
    if found in elem_types.FLOATS and elem_type in elem_types.FLOATS:
        return converted_floats(stored.source, found, elem_type, place.input_name, overflows)
    raise refuse(
        f"weights of input {place.input_name!r}",
        code="external_data",
        found=f"type {stored.dtype} of tensor {place.key!r} in {str(stored.source.file.path)!r}",
        expected=f"{elem_types.type_name(elem_type)}, or floats for floats",
        fix="the checkpoint belongs to another model, or the exporter must prepare it",
    )
