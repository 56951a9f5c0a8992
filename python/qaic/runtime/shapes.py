"""Shape dictionaries, and conversion of arrays to the required shapes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from qaic import _core
from qaic.errors import InputError, InputShapeError, InputTypeError
from qaic.support.text import counted

#: device types of DLPack for host memory: plain, pinned for two kinds of device, or shared with them
_HOST: Final = 1
_HOST_MEMORY: Final = frozenset({_HOST, 3, 11, 13})
_Key = TypeVar("_Key", int, str)


class ShapeAndType(NamedTuple):
    """Shape and type of the array of an input or output."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class ShapeDict(dict[str, ShapeAndType]):
    """Name -> ``(shape, dtype)``, in binding order.

    Public code uses ``model_input_shape_dict`` both as an attribute and as a method, so calling the
    dictionary returns it.
    """

    @classmethod
    def of(cls, tensors: Iterable[_core.Tensor]) -> Self:
        """Return the dictionary of the tensors that belong to the model."""
        return cls((t.name, ShapeAndType(t.shape, np.dtype(t.dtype))) for t in tensors if t.visible)

    def __call__(self) -> Self:
        """Return the dictionary itself."""
        return self


def allowed_shapes(network: Mapping[str, Any]) -> list[dict[str, tuple[int, ...]]]:
    """Return the shapes of all bindings for each combination in a network descriptor; empty for only one."""
    names = [binding["name"] for binding in (*network.get("inputs", ()), *network.get("outputs", ()))]
    return [
        dict(zip(names, (tuple(shape.get("dims", ())) for shape in entry["shapes"]), strict=False))
        for entry in network.get("allowed_shapes", ())
    ]


def default_shapes(
    compiled: dict[_Key, tuple[int, ...]], allowed: Sequence[dict[_Key, tuple[int, ...]]]
) -> dict[_Key, tuple[int, ...]]:
    """Return the compiled shapes, or the first combination if the program does not accept them together.

    The compiled shape of a binding has the largest size of each dimension, which no specialization need have.
    """
    accepts_compiled = not allowed or any(compiled.items() <= shapes.items() for shapes in allowed)
    return compiled if accepts_compiled else allowed[0]


def coerce(name: str, value: object, dtype: str, shape: Iterable[int], partial: bool) -> NDArray[Any]:  # noqa: FBT001
    """Convert ``value`` to an array that input ``name`` accepts.

    Allowed casts are those that numpy calls ``same_kind``, between integers (a narrowing cast checks the
    range) and between floats; ``bool`` and ``int8`` are interchangeable. Leading dimensions of 1 are ignored,
    and an array of one dimension is reshaped. Other shapes are refused, because their elements may be in
    another order.

    ``value`` is a value that numpy converts to an array, or an array of another library in host memory
    (DLPack). The result is C-contiguous, aligned, of ``dtype``, and of ``shape`` unless it has fewer
    elements, which ``partial`` allows.

    Raises InputTypeError if the type does not convert, InputShapeError for another shape or number of
    elements, and InputError if a number does not fit: an integer beyond the range, or a finite float that
    would become infinite.
    """
    expected_dtype, expected_shape = np.dtype(dtype), tuple(shape)
    array = _as_array(name, value)
    found = f"{array.dtype} of shape {list(array.shape)}"
    expected = f"{expected_dtype} of shape {list(expected_shape)}"
    context = {"name": name, "expected": expected, "found": found}
    if not _converts(array.dtype, expected_dtype):
        raise InputTypeError(
            f"input {name!r} is {found}; {expected} is expected, and {array.dtype} does not convert to "
            f"{expected_dtype} without loss",
            code="input.type",
            context=context,
            hints=(
                f"convert it explicitly with numpy.asarray({_argument(name)}, {expected_dtype.name!r})"
                if array.dtype.kind in "biuf"
                else f"pass an array of {expected_dtype}",
            ),
        )
    count = math.prod(expected_shape)
    if array.size != count and not (partial and array.size < count):
        raise InputShapeError(
            f"input {name!r} is {found} ({counted(array.size, 'element')}); {expected} "
            f"({counted(count, 'element')}) is expected",
            code="input.shape",
            context=context,
        )
    if array.size == count and not _has_layout(array.shape, expected_shape):
        axes = _transposition(array.shape, expected_shape)
        hint = (
            f"reshape it explicitly with .reshape{expected_shape}"
            if axes is None
            else f"its axes are in another order: numpy.transpose({_argument(name)}, {axes}) fits"
        )
        raise InputShapeError(
            f"input {name!r} is {found}; {expected} is expected",
            code="input.shape",
            context=context,
            hints=(hint,),
        )
    _check_range(name, array, expected_dtype, context)
    with np.errstate(over="ignore"):
        converted = array.astype(expected_dtype, copy=False)
    _check_overflow(name, array, converted, context)
    array = np.require(converted, requirements=["C", "A"])
    return array.reshape(expected_shape if array.size == count else -1)


def _as_array(name: str, value: object) -> NDArray[Any]:
    """Return an input as an array, without a copy if another library exports it through DLPack."""
    if isinstance(value, np.ndarray | np.generic) or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    device_type = int(value.__dlpack_device__()[0]) if hasattr(value, "__dlpack_device__") else _HOST
    if device_type not in _HOST_MEMORY:
        raise InputTypeError(
            f"input {name!r} ({type(value).__name__}) is in the memory of another device; an array in host "
            "memory is expected",
            code="input.device",
            context={"name": name, "found": device_type},
            hints=("copy it to the host first, for example with .cpu()",),
        )
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError):
        # Tensors with gradients, or with types that only the library itself converts.
        return np.asarray(value)


def _as_output(value: object) -> object:
    """Return an array over the memory that DLPack describes; return other objects unchanged."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return value
    try:
        view = np.from_dlpack(value)
        # numpy treats exports of the first protocol version as read-only, but their memory may be writable.
        array = view if view.flags.writeable else np.asarray(value)
    except (BufferError, RuntimeError, TypeError):
        return value
    is_same = array.ctypes.data == view.ctypes.data and array.strides == view.strides
    return array if is_same and array.flags.writeable else value


def outputs_memory(out: dict[str, Any] | None) -> dict[str, Any] | None:
    """Replace objects of an ``out`` argument that are no numpy arrays with arrays over their memory."""
    if out is None:
        return None
    memory = {name: _as_output(value) for name, value in out.items()}
    return out if all(memory[name] is value for name, value in out.items()) else memory


def given_outputs(result: dict[str, Any], out: Mapping[str, Any] | None) -> dict[str, Any]:
    """Replace the arrays over their memory with the objects of an ``out`` argument."""
    return result if out is None else {name: out.get(name, array) for name, array in result.items()}


def _has_layout(found: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Return True if an array with the same number of elements has them in the order of a shape."""
    return len(found) == 1 or _without_leading_ones(found) == _without_leading_ones(expected)


def _without_leading_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[next((place for place, size in enumerate(shape) if size != 1), len(shape)) :]


def _transposition(found: tuple[int, ...], expected: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the order of axes that gives an array the layout of a shape, or None.

    Axes of equal size keep their order.
    """
    core = _without_leading_ones(expected)
    wanted = (1,) * (len(found) - len(core)) + core
    moves = [size for size in found if size != 1] != [size for size in core if size != 1]
    if not moves or sorted(found) != sorted(wanted):
        return None
    left = list(range(len(found)))
    axes = []
    for size in wanted:
        axes.append(next(axis for axis in left if found[axis] == size))
        left.remove(axes[-1])
    return tuple(axes)


def _argument(name: str) -> str:
    """Return the name of an array in an example for its input."""
    return name if name.isidentifier() else "array"


def _converts(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    if np.can_cast(source, target, "same_kind"):
        return True
    both_integers = source.kind in "iu" and target.kind in "iu"
    both_floats = source.kind == "f" and target.kind == "f"
    return both_integers or both_floats or {source.name, target.name} == {"bool", "int8"}


def _check_overflow(
    name: str, array: NDArray[Any], converted: NDArray[Any], context: Mapping[str, str]
) -> None:
    if converted.dtype.kind != "f" or np.can_cast(array.dtype, converted.dtype):
        return
    lost = np.isinf(converted) & np.isfinite(array)
    if lost.any():
        value = array[lost].flat[0]
        largest = np.finfo(converted.dtype).max
        raise InputError(
            f"input {name!r} contains {value}; {converted.dtype} holds numbers up to {largest}",
            code="input.range",
            context={**context, "found_value": float(value), "largest": float(largest)},
        )


def _check_range(name: str, array: NDArray[Any], target: np.dtype[Any], context: Mapping[str, str]) -> None:
    if (
        array.dtype.kind not in "iu"
        or target.kind not in "iu"
        or np.can_cast(array.dtype, target)
        or not array.size
    ):
        return
    smallest, largest = int(array.min()), int(array.max())
    limits = np.iinfo(target)
    if smallest < limits.min or largest > limits.max:
        raise InputError(
            f"input {name!r} contains {array.dtype} values from {smallest} to {largest}; "
            f"{target} holds {limits.min} to {limits.max}",
            code="input.range",
            context={**context, "smallest": smallest, "largest": largest},
        )
