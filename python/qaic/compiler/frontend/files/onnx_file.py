"""Reads a model without its weights.

The outer messages of the file (model, graph, initializers, ``Constant`` nodes) are read in the wire format.
Without the large payloads, the message is small, and the onnx library parses it. The payloads stay in the
file, each described by a `Weight`. Memory and time therefore depend on the structure of the graph, and a
model may exceed the 2 GiB limit of protobuf.
"""

import mmap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from qaic.compiler.diagnostics.messages import damaged, not_inside, refuse
from qaic.compiler.frontend.files import tensor_record
from qaic.compiler.frontend.files.external_data import DataFiles, ExternalData
from qaic.compiler.frontend.files.tensor_record import EXTERNAL_FIELD, TensorRecord, read_entry, read_record
from qaic.compiler.frontend.files.weight_spec import METADATA_KEY, wrong_spec
from qaic.compiler.ir import elem_types
from qaic.compiler.ir.constants.float16_weights import Overflows
from qaic.compiler.ir.constants.weights import (
    INLINE_LIMIT,
    FileRange,
    InputFile,
    MemoryRange,
    TensorSource,
    Weight,
    read_all,
)
from qaic.errors import CompileError

if TYPE_CHECKING:
    import onnx

#: model files above this size are mapped; the others are read
_MAP_ABOVE: Final = 32 << 20

_MODEL_GRAPH: Final = 7
_MODEL_METADATA: Final = 14
_MODEL_TRAINING: Final = 20
_GRAPH_NODE: Final = 1
_GRAPH_INITIALIZER: Final = 5
_NODE_OUTPUT: Final = 2
_NODE_OP_TYPE: Final = 4
_NODE_ATTRIBUTE: Final = 5
_NODE_DOMAIN: Final = 7
_ATTRIBUTE_TENSOR: Final = 5

#: beginnings of files of other kinds -> the kind, for messages
_OTHER_FILES: Final = (
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint or a .npz)"),
    (b"version https://git-lfs", "a Git LFS pointer; the model itself was not downloaded"),
    (b"\x89HDF\r\n", "an HDF5 file"),
    (b"<", "an HTML or XML text"),
    (b"{", "a JSON text"),
    (b"\x7fELF", "an ELF file"),
    (b"GGUF", "a GGUF file"),
    (b"\x7c\xcd\xa1\x00", "a compiled program container"),
)


@dataclass(slots=True)
class OnnxFile:
    """An opened model: the model without weight data, its weights, and the files of both.

    The object is a context manager; the sources of the weights read from the open files.
    """

    label: str
    proto_bytes: bytes = b""
    weights: dict[str, Weight] = field(default_factory=dict)
    #: its files and how they were found; empty for a model from memory
    data: DataFiles = field(default_factory=DataFiles)
    #: values of a checkpoint that the types of the model's inputs cannot represent; complete after all were
    #: read
    overflows: Overflows = field(default_factory=lambda: Overflows(clip=False))
    #: the whole model if it is not from a file
    content: bytes | None = None

    @property
    def files(self) -> list[InputFile]:
        """The model file first, then its data files in order of first use."""
        return self.data.files

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def parse(self) -> "onnx.ModelProto":
        """Parse the model. Raises CompileError if the bytes are a protobuf message, but not a model."""
        import onnx
        from google.protobuf.message import DecodeError

        try:
            model = onnx.ModelProto.FromString(self.proto_bytes)
        except DecodeError as error:
            raise _not_onnx(self.label, f"bytes that protobuf cannot parse ({error})") from error
        if not model.HasField("graph"):
            raise _not_onnx(self.label, "a message without a graph")
        return model


def open_model(path: Path) -> OnnxFile:
    """Open a model file and find its weights.

    External data must be in its folder; the checkpoint of a model without weights may be elsewhere
    (`weight_free`). Raises OSError if a file cannot be opened, and CompileError if the file is not an ONNX
    model, or the position of a payload is invalid.
    """
    main = InputFile(path)
    model = OnnxFile(label=f"model file {str(path)!r}", data=DataFiles([main]))
    if main.size == 0:
        model.close()
        raise _not_onnx(model.label, "an empty file")
    try:
        folders = tuple(dict.fromkeys((path.parent.resolve(), path.resolve().parent)))
        _Walk(model, _view(main), main, folders).model()
    except BaseException:
        model.close()
        raise
    return model


def _view(file: InputFile) -> memoryview:
    """Return the bytes of a file; small files are read, because truncating a mapped file ends the process.

    The mapping of a large file lasts until its last reference ends, because frames of an exception may still
    hold views of it. Reading the structure touches few of its pages.
    """
    if file.size > _MAP_ABOVE:
        return memoryview(mmap.mmap(file.fd, 0, prot=mmap.PROT_READ))
    return memoryview(read_all(FileRange(file, 0, file.size)))


def open_bytes(content: bytes) -> OnnxFile:
    """Open a serialized model like `open_model`; data in other files is refused."""
    model = OnnxFile(label="model in memory", content=content)
    if not content:
        raise _not_onnx(model.label, "no bytes")
    _Walk(model, memoryview(content), None, ()).model()
    return model


class _Walk:
    """Reads the wire format of a model once; fills the bytes and the weights of an `OnnxFile`."""

    def __init__(
        self, model: OnnxFile, view: memoryview, main: InputFile | None, folders: tuple[Path, ...]
    ) -> None:
        self.out = model
        self.view = view
        self.main = main
        self.folders = folders
        self.external = ExternalData(folders, model.data)
        #: entries of the metadata about a checkpoint, one for each occurrence
        self.specs: list[bytes] = []

    def model(self) -> None:
        head = bytes(self.view[:64])
        for magic, description in _OTHER_FILES:
            if head.startswith(magic):
                raise _not_onnx(self.out.label, description)
        pieces: list[bytes] = []
        try:
            for number, kind, begin, lo, hi in tensor_record.fields(self.view, 0, len(self.view)):
                if number == _MODEL_GRAPH and kind == tensor_record.LEN:
                    graph = self.graph(lo, hi)
                    pieces += [tensor_record.encode_len(_MODEL_GRAPH, len(graph)), graph]
                elif number == _MODEL_METADATA and kind == tensor_record.LEN and self.is_spec(lo, hi):
                    # The container contains the weights, so its readers must not search for a checkpoint.
                    continue
                elif number != _MODEL_TRAINING:
                    pieces.append(bytes(self.view[begin:hi]))
        except tensor_record.WireError as error:
            if pieces and error.is_cut_off:
                raise refuse(
                    self.out.label,
                    code="not_onnx",
                    found=f"{len(self.view)} bytes, which end inside a message",
                    expected="a whole ONNX model",
                    fix="the file is truncated; copy or download it again",
                ) from error
            raise _not_onnx(self.out.label, f"bytes that are not a protobuf message ({error})") from error
        self.out.proto_bytes = b"".join(pieces)
        # A tensor with external data has this key; searching the bytes is cheaper than reading all nodes.
        is_external = b"location" in self.out.proto_bytes
        if self.specs or is_external:
            self.complete(is_external=is_external)

    def is_spec(self, lo: int, hi: int) -> bool:
        """Keep a property that states the location of the weights."""
        key, value = read_entry(self.view, lo, hi)
        if key == METADATA_KEY.encode():
            self.specs.append(value)
            return True
        return False

    def complete(self, *, is_external: bool) -> None:
        """Find the data of all tensors that the model still lacks."""
        from google.protobuf.message import EncodeError

        from qaic.compiler.frontend.check_model import read_inner_tensors

        model = self.out.parse()
        if is_external:
            read_inner_tensors(model, self.out.weights, self.external)
        if self.specs:
            self.take_checkpoint(model)
        try:
            self.out.proto_bytes = model.SerializeToString(deterministic=True)
        except (EncodeError, ValueError) as error:
            raise refuse(
                "graph without its large initializers",
                code="graph_too_large",
                found=f"a message that protobuf cannot serialize ({error})",
                expected="at most 2 GiB",
                fix="move constants out of control-flow bodies and functions to the main graph",
            ) from error

    def take_checkpoint(self, model: "onnx.ModelProto") -> None:
        from qaic.compiler.frontend.files.weight_free import CheckpointFiles, take_weights
        from qaic.compiler.frontend.files.weight_spec import parse_weight_spec

        if len(self.specs) > 1:
            raise wrong_spec(f"metadata {METADATA_KEY!r} of the model", f"{len(self.specs)} entries", "one")
        spec = parse_weight_spec(self.specs[0])
        if not spec.places:
            return
        if not self.folders:
            what = f"weights of input {spec.places[0].input_name!r}"
            raise not_inside(what, "a checkpoint, but the model is not a file")
        checkpoint = CheckpointFiles(self.folders, spec.model_id, self.out.data)
        take_weights(model, self.out.weights, spec, checkpoint, self.out.overflows)

    def graph(self, lo: int, hi: int) -> bytes:
        """Copy the graph without initializers and constants that have a large payload."""
        pieces: list[memoryview | bytes] = []
        copied = lo  # everything before this position is in `pieces` or was cut out
        for number, kind, begin, start, end in tensor_record.fields(self.view, lo, hi):
            if kind != tensor_record.LEN:
                continue
            replacement: bytes | None = None
            if number == _GRAPH_INITIALIZER:
                replacement = self.initializer(start, end)
            elif number == _GRAPH_NODE and end - start >= INLINE_LIMIT:
                replacement = self.constant_node(start, end)
            if replacement is not None:
                pieces += [self.view[copied:begin], replacement]
                copied = end
        pieces.append(self.view[copied:hi])
        return b"".join(pieces)

    def initializer(self, lo: int, hi: int) -> bytes | None:
        """Return the replacement of an initializer without its data; None keeps the initializer."""
        if hi - lo < INLINE_LIMIT and EXTERNAL_FIELD not in bytes(self.view[lo:hi]):
            return None
        record = read_record(self.view, lo, hi)
        return self.cut(record, record.name)

    def constant_node(self, lo: int, hi: int) -> bytes | None:
        """Turn a ``Constant`` node with a large tensor into an initializer named like its output."""
        outputs: list[str] = []
        op_type = domain = ""
        attributes: list[tuple[int, int]] = []
        for number, kind, _, start, end in tensor_record.fields(self.view, lo, hi):
            if kind != tensor_record.LEN:
                continue
            if number == _NODE_OUTPUT:
                outputs.append(_text(self.view, start, end))
            elif number == _NODE_OP_TYPE:
                op_type = _text(self.view, start, end)
            elif number == _NODE_DOMAIN:
                domain = _text(self.view, start, end)
            elif number == _NODE_ATTRIBUTE:
                attributes.append((start, end))
        if op_type != "Constant" or domain not in {"", "ai.onnx"} or len(outputs) != 1:
            return None
        for attribute_lo, attribute_hi in attributes:
            for number, kind, _, start, end in tensor_record.fields(self.view, attribute_lo, attribute_hi):
                if number == _ATTRIBUTE_TENSOR and kind == tensor_record.LEN:
                    return self.cut(read_record(self.view, start, end), outputs[0])
        return None

    def cut(self, record: TensorRecord, name: str) -> bytes | None:
        """Register the payload as a weight; a small external one is read into it instead."""
        what = f"initializer {name!r}"
        if record.elem_type == elem_types.STRING or (not record.external and record.payload < INLINE_LIMIT):
            return None
        if record.elem_type not in elem_types.TABLE or any(dim < 0 for dim in record.dims):
            raise refuse(
                what,
                code="invalid_model",
                found=f"element type {record.elem_type} and dims {record.dims}",
                expected="a known element type and dims of at least 0",
            )
        size = elem_types.tensor_bytes(record.elem_type, record.dims)
        source: TensorSource
        if record.external:
            source = self.external.range(record.external, what, size)
        elif record.plain is not None:
            lo, hi = record.plain
            source = (
                FileRange(self.main, lo, hi - lo) if self.main is not None else MemoryRange(self.view[lo:hi])
            )
        else:
            source = MemoryRange(self.decoded(record, what))
        if source.nbytes != size:
            expected = f"{size} bytes for {elem_types.type_name(record.elem_type)} {record.dims}"
            raise damaged(what, f"{source.nbytes} bytes of data", expected)
        if size < INLINE_LIMIT:
            return record.inline(name, read_all(source))
        if name in self.out.weights:
            raise refuse(what, code="invalid_model", found="two of that name", expected="unique names")
        self.out.weights[name] = Weight(name, record.elem_type, tuple(record.dims), source)
        return b""

    def decoded(self, record: TensorRecord, what: str) -> bytes:
        from google.protobuf.message import DecodeError

        try:
            return record.decode(self.view)
        except (DecodeError, KeyError, TypeError, ValueError) as error:
            expected = f"the data of {elem_types.type_name(record.elem_type)} {record.dims}"
            raise damaged(what, f"data that cannot be decoded ({error})", expected) from error


def _text(view: memoryview, lo: int, hi: int) -> str:
    return str(view[lo:hi], "utf-8", "replace")


def _not_onnx(label: str, found: str) -> CompileError:
    return refuse(
        label,
        code="not_onnx",
        found=found,
        expected="an ONNX model",
        fix="export the network to ONNX first; other formats are not read",
    )
