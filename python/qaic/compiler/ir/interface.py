"""Inputs and outputs of a program, for each set of shapes, and the libraries of its custom operators."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qaic.compiler.diagnostics.messages import refuse
from qaic.compiler.ir.elem_types import tensor_bytes, type_name

#: the descriptor stores the bytes of a buffer as u32
MAX_BYTES: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of the program."""

    name: str
    elem_type: int
    dims: tuple[int, ...]
    #: its form in the model, if the custom I/O options changed it
    model: "TensorSpec | None" = None
    #: scale and offset of a quantized tensor: real = scale x (q - offset)
    quantized: tuple[float, int] | None = None
    #: last dim of a tensor whose bytes are MXINT8 blocks
    mxint8: int | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return tensor_bytes(self.elem_type, self.dims)

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        return type_name(self.elem_type)


@dataclass(frozen=True, slots=True)
class Specialization:
    """One set of shapes: dims of every input and output, in order."""

    name: str
    symbols: Mapping[str, int]
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Interface:
    """Inputs and outputs with their largest dims, and the sets of shapes if there are several."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    specializations: tuple[Specialization, ...] = ()


def check_size(spec: TensorSpec, kind: str) -> TensorSpec:
    """Return a tensor that fits in a buffer; refuse any other."""
    if spec.nbytes > MAX_BYTES or any(dim > 0x7FFF_FFFF for dim in spec.dims):
        raise refuse(
            f"{kind} {spec.name!r}",
            code="tensor_too_large",
            found=f"{spec.nbytes} bytes {list(spec.dims)}",
            expected=f"at most {MAX_BYTES} bytes",
            fix="use a smaller batch or split the tensor",
            context={"tensor": spec.name},
        )
    return spec


@dataclass(frozen=True, slots=True)
class Library:
    """An engine library with custom operators, as the container describes it."""

    path: Path
    size: int
    crc32: int

    def to_json(self) -> dict[str, object]:
        """Return the JSON for the container, without folders of this machine."""
        return {"name": self.path.name, "size": self.size, "crc32": self.crc32}


@dataclass(frozen=True, slots=True)
class CustomOps:
    """Contents of the descriptions."""

    #: the library of each operator; None if the description has none for the interpreter
    operators: Mapping[str, Library | None]

    @property
    def libraries(self) -> list[Library]:
        """Each library once, in the order of the descriptions."""
        return list(dict.fromkeys(library for library in self.operators.values() if library is not None))

    @property
    def implemented(self) -> frozenset[str]:
        """Operators that a library implements."""
        return frozenset(name for name, library in self.operators.items() if library is not None)
