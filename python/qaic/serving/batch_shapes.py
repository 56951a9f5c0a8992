"""Shapes that a program accepts, and requests that can share one inference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from qaic.compiler.reports.row_independence import why_dependent
from qaic.errors import InputError, InputShapeError, MissingInputError, StateError
from qaic.runtime.shapes import allowed_shapes, coerce
from qaic.session import Session
from qaic.support.program_names import RETAINED_STATE_SUFFIX

#: number of forms of requests in a message
_SHOWN: Final = 4

Arrays = dict[str, "NDArray[Any]"]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """Checked inputs of a request."""

    #: Arrays of the program's types.
    inputs: Arrays
    #: Indices along the first dimension; 1 for a program without batches.
    rows: int
    #: Requests of one group can share an inference.
    group: tuple[Shape, ...]


class BatchShapes:
    """Shapes of a program's inputs, with the first dimension as a batch if it is one. The program is not run.

    The first dimension is a batch when all inputs and outputs have the same, the device keeps no state, and
    an analysis of the graph proves that rows depend neither on each other nor on their position
    (`qaic.compiler.reports.row_independence`), or that is declared (`is_declared`). Raises StateError if the
    device keeps state of the program, which all requests would share.

    Attributes
    ----------
    is_batched : bool
        Requests share inferences: the first dimension is a batch, and the argument of this name allows it.
    reason : str
        The reason if requests do not share inferences although they may; otherwise empty.
    first_dimension : int
        Largest first dimension that inputs and outputs have in common; 0 if there is none.
    """

    def __init__(self, session: Session, *, is_batched: bool = True, is_declared: bool = False) -> None:
        refuse_state(session)
        self._dtypes = {spec.name: spec.dtype for spec in session.inputs}
        self._combinations = _combinations(session)
        self.is_batched = False
        self.reason = self._why_not_batched()
        self.first_dimension = 0 if self.reason else max(_rows(inputs) for inputs, _ in self._combinations)
        if not is_batched:
            self.reason = ""
        else:
            if not self.reason and not is_declared:
                self.reason = self._why_not_independent(session)
            self.is_batched = not self.reason
        self._sizes: dict[tuple[Shape, ...], list[int]] = {}
        for inputs, _ in self._combinations:
            shapes = tuple(inputs.values())
            size = shapes[0][0] if self.is_batched else 1
            group = tuple(shape[1:] for shape in shapes) if self.is_batched else shapes
            self._sizes.setdefault(group, []).append(size)
        for sizes in self._sizes.values():
            sizes.sort()

    @property
    def max_batch_size(self) -> int:
        """Rows of the largest batch; 0 for a program without batches."""
        return max(map(max, self._sizes.values())) if self.is_batched else 0

    @property
    def groups(self) -> tuple[tuple[Shape, ...], ...]:
        """Shapes of inputs that the program accepts together, without the batch dimension."""
        return tuple(self._sizes)

    def shapes_of(self, name: str) -> list[Shape]:
        """Return all shapes of an input or output."""
        return [{**inputs, **outputs}[name] for inputs, outputs in self._combinations]

    def capacity(self, group: tuple[Shape, ...]) -> int:
        """Rows of the largest batch for requests of a group."""
        return self._sizes[group][-1]

    def batch_size(self, group: tuple[Shape, ...], rows: int) -> int:
        """Rows of the smallest batch that has room for the given rows."""
        return next(size for size in self._sizes[group] if size >= rows)

    def admit(self, inputs: Mapping[str, NDArray[Any]]) -> AdmittedRequest:
        """Check the inputs of a request; types are converted as `qaic.Session.run` does.

        Raises InputError if a name is unknown or missing, or a shape, type or value does not fit.
        """
        dtypes = self._dtypes
        if inputs.keys() != dtypes.keys():
            _check_names(inputs, dtypes)
        found = tuple(inputs[name].shape for name in dtypes)
        rows, group = 1, found
        if self.is_batched:
            rows = found[0][0] if found[0] else 0
            group = tuple(shape[1:] for shape in found)
        is_known = group in self._sizes and (
            not self.is_batched
            or (all(shape and shape[0] == rows for shape in found) and 0 < rows <= self._sizes[group][-1])
        )
        if not is_known:
            raise InputShapeError(
                f"the inputs are {_listed(dtypes, found)}; allowed are {self._allowed()}",
                code="serving.shapes",
            )
        return AdmittedRequest(self.converted(inputs), rows, group)

    def converted(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return inputs in the types of the program. Other inputs do not change.

        Raises InputError if a type or value does not fit.
        """
        dtypes, found = self._dtypes, dict(inputs)
        for name, array in inputs.items():
            dtype = dtypes.get(name)
            if dtype is not None and array.dtype != dtype:
                found[name] = coerce(name, array, dtype.name, array.shape, False)  # noqa: FBT003 (its form)
        return found

    def stack(self, requests: Sequence[AdmittedRequest]) -> Arrays:
        """Put requests of one group into the inputs of one inference, filled up with copies of the last row.

        Copies are valid inputs; rows of zeros might not be.
        """
        if not self.is_batched:
            return _in_place(requests[0].inputs)
        rows = sum(request.rows for request in requests)
        size = self.batch_size(requests[0].group, rows)
        if len(requests) == 1 and rows == size:
            return _in_place(requests[0].inputs)
        stacked = {}
        for name, dtype in self._dtypes.items():
            first = requests[0].inputs[name]
            batch = np.empty((size, *first.shape[1:]), dtype)
            start = 0
            for request in requests:
                batch[start : start + request.rows] = request.inputs[name]
                start += request.rows
            batch[start:] = batch[start - 1]
            stacked[name] = batch
        return stacked

    def split(self, requests: Sequence[AdmittedRequest], outputs: Arrays) -> list[Arrays]:
        """Return the rows of each request in the outputs of `stack`."""
        if not self.is_batched:
            return [outputs]
        parts = []
        start = 0
        for request in requests:
            end = start + request.rows
            parts.append({name: array[start:end] for name, array in outputs.items()})
            start = end
        return parts

    def _allowed(self) -> str:
        batch = [f"1 to {self.max_batch_size}"] if self.is_batched else []
        forms = []
        for group in self._sizes:
            shapes = (
                f"{name} [{', '.join([*batch, *map(str, shape)])}]" for name, shape in self._named(group)
            )
            forms.append(" with ".join(shapes))
        more = len(forms) - _SHOWN
        return " or ".join([*forms[:_SHOWN], *([f"{more} more"] if more > 0 else [])])

    def _named(self, shapes: tuple[Shape, ...]) -> list[tuple[str, Shape]]:
        return list(zip(self._dtypes, shapes, strict=True))

    def _why_not_batched(self) -> str:
        for inputs, outputs in self._combinations:
            shapes = {**inputs, **outputs}
            firsts = {shape[0] if shape else None for shape in shapes.values()}
            if len(firsts) != 1 or None in firsts or not inputs:
                listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
                return f"inputs and outputs have no common first dimension: {listed}"
        return ""

    def _why_not_independent(self, session: Session) -> str:
        """Analyze the graph of the program."""
        if self.first_dimension == 1:
            return ""
        graph = session.qpc.graph
        if graph is None:
            return "the container has no graph, so rows cannot be proved independent"
        model = onnx.load_model_from_string(graph.tobytes())
        reason = why_dependent(model, [inputs for inputs, _ in self._combinations], session.qpc.initializers)
        return f"rows cannot be proved independent: {reason}" if reason else ""


def _rows(inputs: Mapping[str, Shape]) -> int:
    return next(iter(inputs.values()))[0]


def _in_place(inputs: Arrays) -> Arrays:
    """Copy arrays that a session cannot read in place, such as those after the JSON of a request."""
    return {
        name: array if array.flags.c_contiguous and array.flags.aligned else array.copy(order="C")
        for name, array in inputs.items()
    }


def _combinations(session: Session) -> list[tuple[dict[str, Shape], dict[str, Shape]]]:
    """List the shapes of inputs and of outputs that the program accepts together."""
    inputs = {spec.name: spec.shape for spec in session.inputs}
    outputs = {spec.name: spec.shape for spec in session.outputs}
    combinations = [
        ({name: shapes[name] for name in inputs}, {name: shapes[name] for name in outputs})
        for shapes in allowed_shapes(session.qpc.network_descriptor)
    ]
    return combinations or [(inputs, outputs)]


def refuse_state(session: Session) -> None:
    """Refuse a program whose state would be shared by all requests.

    Raises StateError if the device keeps state of it.
    """
    plan = session.qpc.plan
    inputs = {spec.name for spec in session.inputs}
    states = [
        spec.name.removesuffix(RETAINED_STATE_SUFFIX)
        for spec in session.outputs
        if spec.name.endswith(RETAINED_STATE_SUFFIX)
        and spec.name.removesuffix(RETAINED_STATE_SUFFIX) in inputs
    ]
    if states and (plan is None or plan.get("retained_state")):
        raise StateError(
            f"the device keeps the value of {', '.join(states[:4])} from one inference to the next, and all "
            "requests would share it",
            code="serving.retained_state",
            hints=("compile without retained_state, so that each request contains its state",),
        )


def _check_names(inputs: Mapping[str, object], dtypes: Mapping[str, object]) -> None:
    for name in inputs:
        if name not in dtypes:
            raise InputError(
                f"input {name!r} does not exist; the program has {list(dtypes)}", code="input.unknown_name"
            )
    missing = [name for name in dtypes if name not in inputs]
    raise MissingInputError(
        f"missing inputs: {', '.join(missing)}; the program needs {list(dtypes)}", code="input.missing"
    )


def _listed(names: Mapping[str, object], shapes: tuple[Shape, ...]) -> str:
    return " with ".join(f"{name} {list(shape)}" for name, shape in zip(names, shapes, strict=True))
