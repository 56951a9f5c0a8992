"""Embedding tables of recommender models in a zip file.

The file has one ``.npy`` member per table, named after the initializer. Tables may be larger than memory, so
they are read and written in pieces.
"""

import errno
import io
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import onnx

from qaic.compiler.diagnostics.messages import listing, refuse, warn
from qaic.compiler.ir.constants.in_graph import ConstantReader
from qaic.compiler.ir.constants.weights import CHUNK, Weight
from qaic.compiler.ir.elem_types import OF_NUMPY, TABLE, tensor_bytes, type_name
from qaic.compiler.ir.graph_edits import set_payload
from qaic.compiler.ir.graph_walk import standard
from qaic.compiler.ir.model import Context, Model, SideFile, compiler_pass
from qaic.errors import CompileError
from qaic.support.program_names import archive_names

_SUFFIX: Final = ".npy"

#: most tables in one file, because the whole directory of a zip file is in memory
_MAX_MEMBERS: Final = 65_536

#: most bytes of the header of a ``.npy`` file; numpy writes 128
_MAX_HEADER: Final = 4096

_RANK: Final = 2

#: date of all members; a zip file requires one
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class _Member:
    """The payload of one table in a zip file."""

    file: Path
    name: str
    skip: int
    nbytes: int

    def chunks(self) -> Iterator[bytes]:
        """Read the table; the zip's checksum is verified at its end."""
        left = self.nbytes
        try:
            with zipfile.ZipFile(self.file) as tables, tables.open(self.name) as stream:
                stream.read(self.skip)
                while left and (piece := stream.read(min(CHUNK, left))):
                    left -= len(piece)
                    yield piece
                stream.read(1)
        except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError, zlib.error) as error:
            raise _refuse(self.file, f"member {self.name!r}", str(error), "an undamaged member") from error
        if left:
            raise _refuse(self.file, f"member {self.name!r}", f"{left} missing bytes", "the whole table")


def _load_tables(model: Model, file: Path) -> None:
    """Replace initializers by the tables of the same names.

    The zip file has ``<initializer>.npy`` members, stored or deflated.
    """
    weights, small = model.weights, {tensor.name: tensor for tensor in model.proto.graph.initializer}
    constants = ConstantReader(model.proto.graph, weights)
    unknown: list[str] = []
    loaded = 0
    named = {member: name for name, member in archive_names([*weights, *small]).items()}
    try:
        with zipfile.ZipFile(file) as tables:
            members = [member for member in tables.infolist() if not member.is_dir()]
            _check_members(file, members)
            for member in members:
                name = member.filename.removesuffix(_SUFFIX)
                name = name if name in constants else named.get(name, name)
                known = constants.describe(name)
                if known is None or not member.filename.endswith(_SUFFIX):
                    unknown.append(member.filename)
                    continue
                with tables.open(member) as stream:
                    skip = _check_header(file, member, stream, known)
                source = _Member(file, member.filename, skip, known.source.nbytes)
                if name in weights:
                    weights[name] = Weight(name, known.elem_type, known.dims, source)
                else:
                    set_payload(small[name], small[name].data_type, b"".join(source.chunks()))
                loaded += 1
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, UnicodeDecodeError, zlib.error) as error:
        raise _refuse(file, "the file", str(error), "a zip file, stored or deflated") from error
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # zipfile raises this if a damaged directory points before the start of the file.
        raise _refuse(file, "the file", "a damaged directory", "a zip file, stored or deflated") from error
    if not loaded:
        raise _refuse(file, "its members", listing(unknown) or "none", "names of initializers with .npy")
    if unknown:
        warn(
            "embedding_tables.unknown_tables",
            f"load_embedding_tables: the model has no initializers for {listing(unknown)}",
            nodes=unknown,
        )


def find_tables(model: onnx.ModelProto, weights: dict[str, Weight]) -> list[Weight]:
    """Find the constant tables of two dimensions that Gather nodes read.

    Raises CompileError if the model has no such table.
    """
    names = dict.fromkeys(node.input[0] for node in model.graph.node if standard(node, "Gather"))
    known = filter(None, map(ConstantReader(model.graph, weights).describe, names))
    tables = [table for table in known if len(table.dims) == _RANK and table.elem_type in OF_NUMPY]
    if not tables:
        raise refuse(
            "dump_embedding_tables",
            code="embedding_tables",
            found="no Gather node that reads a constant of two dimensions",
            expected="at least one embedding table",
            fix="omit the option",
        )
    return tables


def write_tables(tables: list[Weight], target: Path) -> None:
    """Write tables to a zip file, without compression. Raises OSError if the file cannot be written."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        members = archive_names(table.name for table in tables)
        for table in tables:
            with archive.open(
                zipfile.ZipInfo(members[table.name] + _SUFFIX, _EPOCH), "w", force_zip64=True
            ) as member:
                member.write(_header(table))
                for piece in table.source.chunks():
                    member.write(piece)


def _check_members(file: Path, members: list[zipfile.ZipInfo]) -> None:
    if len(members) > _MAX_MEMBERS:
        raise _refuse(file, "its members", str(len(members)), f"at most {_MAX_MEMBERS}")
    seen: set[str] = set()
    for member in members:
        if member.filename in seen:
            raise _refuse(file, f"member {member.filename!r}", "two members of this name", "one")
        seen.add(member.filename)


def _check_header(file: Path, member: zipfile.ZipInfo, stream: IO[bytes], known: Weight) -> int:
    """Compare a table with its initializer; return the position of the payload."""
    from numpy.lib import format as npy

    what = f"member {member.filename!r}"
    expected = f"{type_name(known.elem_type)} {list(known.dims)} as in the model"
    if known.elem_type not in OF_NUMPY:
        raise _refuse(file, what, "a table", f"no table, because numpy has no {type_name(known.elem_type)}")
    try:
        prefix = stream.read(8)
        length = struct.Struct("<H" if prefix[6:7] == b"\x01" else "<I")
        size = int(length.unpack(stream.read(length.size))[0])
        if prefix[:6] != b"\x93NUMPY" or size > _MAX_HEADER:
            raise _refuse(file, what, "no .npy header", expected)
        text = stream.read(size)
        shape, is_fortran, dtype = _read_header(npy, prefix + length.pack(size) + text)
    except (struct.error, ValueError, EOFError, SyntaxError, tokenize.TokenError, zlib.error) as error:
        raise _refuse(file, what, f"a damaged header ({error})", expected) from error
    found = f"{dtype.name} {list(shape)}"
    if is_fortran and len(shape) > 1:
        raise _refuse(file, what, f"{found} in Fortran order", f"{expected}, in C order")
    little = dtype.newbyteorder("<") == dtype
    if dtype.name != TABLE[known.elem_type][0] or tuple(shape) != known.dims or not little:
        raise _refuse(file, what, found if little else f"{found}, big-endian", expected)
    skip = 8 + length.size + size
    if member.file_size != skip + tensor_bytes(known.elem_type, known.dims):
        raise _refuse(file, what, f"{member.file_size - skip} bytes of data", expected)
    return skip


def _read_header(npy: Any, header: bytes) -> tuple[tuple[int, ...], bool, Any]:
    stream = io.BytesIO(header)
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_fortran, dtype = read(stream, max_header_size=_MAX_HEADER)
    return shape, is_fortran, dtype


def _header(table: Weight) -> bytes:
    from numpy.lib import format as npy

    stream = io.BytesIO()
    descr = npy.dtype_to_descr(np.dtype(TABLE[table.elem_type][0]).newbyteorder("<"))
    npy.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": table.dims})
    return stream.getvalue()


def _refuse(file: Path, what: str, found: str, expected: str) -> CompileError:
    return refuse(
        f"load_embedding_tables: {str(file)!r}, {what}",
        code="embedding_tables",
        found=found,
        expected=expected,
        fix="write the file with numpy.save and zipfile, or with dump_embedding_tables",
        context={"path": str(file)},
    )


@compiler_pass(lambda context: context.options.dump_embedding_tables)
def dump_embedding_tables_pass(model: Model, context: Context) -> None:
    """Write the embedding tables of the model to a file."""
    path = context.options.dump_embedding_tables
    if path is not None:
        tables = find_tables(model.proto, model.weights)
        context.side_files.append(SideFile(path, partial(write_tables, tables)))


@compiler_pass(lambda context: context.options.load_embedding_tables)
def load_embedding_tables_pass(model: Model, context: Context) -> None:
    """Replace the embedding tables of the model by those of a file."""
    file = context.options.load_embedding_tables
    if file is not None:
        _load_tables(model, file.path)
