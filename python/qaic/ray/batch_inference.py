"""The actor that computes a batch of rows, and the dataset that uses it."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from ray.data import ActorPoolStrategy, Dataset

from qaic.errors import DeviceLostError, InferenceError, InputError, OptionError, QaicError
from qaic.ray.columns import array_of, column_of
from qaic.ray.shared_program import Model, SharedProgram, load_again
from qaic.serving.batch_shapes import AdmittedRequest, BatchShapes
from qaic.session import Session
from qaic.support.text import counted

Arrays = dict[str, "NDArray[Any]"]

#: inferences of a batch per inference in flight, and the largest number of bytes of their tensors
_INFERENCES_IN_FLIGHT: Final = 4
_MOST_BYTES: Final = 64 << 20
_LOADS_AFTER_LOSS: Final = 4
_SHOWN_COLUMNS, _SHOWN_CHARACTERS = 4, 80


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns that are read and written."""

    #: Input of the program -> column, if the names differ.
    inputs: Mapping[str, str]
    #: Output of the program -> column; None: all, by their names.
    outputs: Mapping[str, str] | None
    #: Columns to keep; None: all.
    keep: tuple[str, ...] | None
    #: Tensor columns of Ray, or lists of Arrow.
    output_format: Literal["numpy", "arrow"]

    def check(self, session: Session) -> None:
        """Compare the names with those of the program.

        Raises OptionError if the program has no such input or output, or the format is unknown.
        """
        for what, named, specs in (
            ("input", self.inputs, session.inputs),
            ("output", self.outputs or {}, session.outputs),
        ):
            known = [spec.name for spec in specs]
            for name in named:
                if name not in known:
                    raise OptionError(
                        f"{what}s names {name!r}; the program has the {what}s {known}", code="ray.columns"
                    )
        if self.output_format not in ("numpy", "arrow"):
            raise OptionError(
                f"output_format is {self.output_format!r}; 'numpy' or 'arrow' is expected", code="ray.columns"
            )


class BatchInference:
    """A program in an actor. Ray shows its progress as ``MapBatches(BatchInference)``."""

    def __init__(self, program: SharedProgram, columns: Columns) -> None:
        self.session = program.open()
        self._shapes = BatchShapes(self.session)
        self._columns = columns

    def __call__(self, table: pa.Table) -> pa.Table:
        """Run the program over the rows of a table. Blocking.

        Raises QaicError if a row cannot be used, or the program failed on it; ``context["row"]`` is its index
        in the table.
        """
        if table.num_rows:
            requests = self._requests(table, self._arrays(table))
            parts = self._run(table, requests)
            outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        else:
            outputs = {
                spec.name: np.empty((0, *self._row_of(spec.shape)), spec.dtype)
                for spec in self.session.outputs
            }
        return self._with_outputs(table, outputs)

    # --- columns --------------------------------------------------------------------------------------------

    def _arrays(self, table: pa.Table) -> Arrays:
        arrays = {}
        for spec in self.session.inputs:
            column = self._columns.inputs.get(spec.name, spec.name)
            if column not in table.column_names:
                if len(self.session.inputs) != 1 or table.num_columns != 1 or self._columns.inputs:
                    raise OptionError(
                        f"the dataset has no column {column!r} for input {spec.name!r}; it has "
                        f"{table.column_names}",
                        code="ray.columns",
                        hints=(f"name the column: inputs={{{spec.name!r}: '...'}}",),
                    )
                # If a program has one input, its array needs no name, as for `Session.run`.
                column = table.column_names[0]
            try:
                arrays[spec.name] = array_of(column, table.column(column))
            except InputError as error:
                raise _in_row(error, table, error.context.get("row")) from None
        return arrays

    def _row_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[1:] if self._shapes.is_batched else shape

    def _with_outputs(self, table: pa.Table, outputs: Arrays) -> pa.Table:
        columns = self._columns
        kept = table if columns.keep is None else table.select(_known(columns.keep, table))
        wanted = columns.outputs if columns.outputs is not None else {name: name for name in outputs}
        for name, column in wanted.items():
            if column in kept.column_names:
                raise OptionError(
                    f"output {name!r} would become column {column!r}, which the dataset already has",
                    code="ray.column_exists",
                    hints=(
                        f"use another name, outputs={{{name!r}: '...'}}, or list other columns in keep=[...]",
                    ),
                )
            kept = kept.append_column(column, column_of(outputs[name], columns.output_format))
        return kept

    # --- inferences -----------------------------------------------------------------------------------------

    def _requests(self, table: pa.Table, arrays: Arrays) -> list[AdmittedRequest]:
        """Divide rows into the inputs of inferences."""
        shaped = self._shaped(arrays)
        group = tuple(array.shape[1:] for array in shaped.values())
        # The first row with a shape that the program does not accept raises the error.
        has_batch = self._shapes.is_batched and group in self._shapes.groups
        step = self._shapes.capacity(group) if has_batch else 1
        return [
            self._admit(table, shaped, start, min(start + step, table.num_rows))
            for start in range(0, table.num_rows, step)
        ]

    def _shaped(self, arrays: Arrays) -> Arrays:
        """Reshape rows to the shapes of the program, if `qaic.Session.run` allows the difference."""
        groups = self._shapes.groups
        found = tuple(array.shape[1:] for array in arrays.values())
        if found in groups or len(groups) != 1:
            return arrays
        return {
            name: array.reshape(len(array), *row) if _may_be(array.shape[1:], row) else array
            for (name, array), row in zip(arrays.items(), groups[0], strict=True)
        }

    def _admit(self, table: pa.Table, arrays: Arrays, start: int, end: int) -> AdmittedRequest:
        def admit(first: int, after: int) -> AdmittedRequest:
            return self._shapes.admit(
                {
                    name: array[first:after] if self._shapes.is_batched else array[first]
                    for name, array in arrays.items()
                }
            )

        try:
            return admit(start, end)
        except InputError as error:
            for row in range(start, end):
                try:
                    admit(row, row + 1)
                except InputError as of_row:
                    raise _in_row(of_row, table, row) from None
            raise _in_row(error, table, None) from None

    def _run(self, table: pa.Table, requests: Sequence[AdmittedRequest]) -> list[Arrays]:
        """Run all requests; rows of a failed request run one by one, to find the row that fails."""
        done: list[Arrays] = []
        losses = 0
        while len(done) < len(requests):
            rest = requests[len(done) :]
            try:
                stacked = (self._shapes.stack([request]) for request in rest)
                for request, outputs in zip(rest, self.session.map(stacked), strict=False):
                    done.append(self._rows(request, outputs))
            except InferenceError:
                first_row = sum(request.rows for request in requests[: len(done)])
                done.append(self._one_by_one(table, requests[len(done)], first_row))
            except DeviceLostError:
                losses += 1
                if losses > _LOADS_AFTER_LOSS:
                    raise
                load_again(self.session, _LOADS_AFTER_LOSS, time.sleep)
        return done

    def _rows(self, request: AdmittedRequest, outputs: Arrays) -> Arrays:
        if self._shapes.is_batched:
            (part,) = self._shapes.split([request], outputs)
            return part
        return {name: array[np.newaxis] for name, array in outputs.items()}

    def _one_by_one(self, table: pa.Table, request: AdmittedRequest, first_row: int) -> Arrays:
        parts = []
        for row in range(request.rows):
            inputs = request.inputs
            if self._shapes.is_batched:
                inputs = {name: array[row : row + 1] for name, array in inputs.items()}
            alone = self._shapes.admit(inputs)
            try:
                outputs = self.session.run(self._shapes.stack([alone]))
            except InferenceError as error:
                raise _in_row(error, table, first_row + row) from error
            parts.append(self._rows(alone, outputs))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _may_be(found: tuple[int, ...], row: tuple[int, ...]) -> bool:
    """Return True if rows fit a shape: leading ones are ignored, and one dimension can have any size."""
    if math.prod(found) != math.prod(row):
        return False
    return len(found) <= 1 or _without_ones(found) == _without_ones(row)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    start = next((axis for axis, size in enumerate(shape) if size != 1), len(shape))
    return shape[start:]


def _known(names: tuple[str, ...], table: pa.Table) -> list[str]:
    for name in names:
        if name not in table.column_names:
            raise OptionError(
                f"keep names the column {name!r}; the dataset has {table.column_names}", code="ray.columns"
            )
    return list(names)


def _in_row(error: QaicError, table: pa.Table, row: int | None) -> QaicError:
    """Return the same error with the number of its row."""
    where = f"a batch of {counted(table.num_rows, 'row')}"
    if row is not None:
        where = f"row {row} of {where}{_shown(table, row)}"
    context = dict(error.context) if row is None else {**error.context, "row": row}
    return type(error)(
        f"{where}: {error.message}", code=error.code, context=context, hints=tuple(error.hints)
    )


def _shown(table: pa.Table, row: int) -> str:
    """Return the numbers and texts of a row, which help a user to find it."""
    plain = [
        name
        for name in table.column_names
        if not pa.types.is_nested(table.schema.field(name).type)
        and not isinstance(table.schema.field(name).type, pa.BaseExtensionType)
    ]
    shown = [
        f"{name}={table.column(name)[row].as_py()!r}"[:_SHOWN_CHARACTERS] for name in plain[:_SHOWN_COLUMNS]
    ]
    return f" ({', '.join(shown)})" if shown else ""


def add_inference(
    dataset: Dataset,
    model: Model,
    columns: Columns,
    *,
    num_actors: int | tuple[int, int],
    batch_size: int | None,
    preserve_order: bool,
    devices: float,
    options: Mapping[str, Any],
    ray_remote_args: dict[str, Any],
) -> Dataset:
    """Implement :func:`qaic.ray.map_batches`."""
    if not isinstance(dataset, Dataset):
        raise OptionError(
            f"the dataset has type {type(dataset).__name__}; a ray.data.Dataset is expected",
            code="ray.dataset",
        )
    strategy = _strategy(num_actors)
    program, session = SharedProgram.put(model, options, devices)
    columns.check(session)
    result = dataset.map_batches(
        BatchInference,
        fn_constructor_args=(program, columns),
        batch_size=_rows(session) if batch_size is None else batch_size,
        batch_format="pyarrow",
        zero_copy_batch=True,
        udf_modifying_row_count=False,
        compute=strategy,
        resources=program.ray_resources(ray_remote_args.pop("resources", None)) or None,
        **ray_remote_args,
    )
    if preserve_order:
        result.context.execution_options.preserve_order = True
    return result


def _strategy(num_actors: int | tuple[int, int]) -> ActorPoolStrategy:
    least, most = num_actors if isinstance(num_actors, tuple | list) else (num_actors, num_actors)
    if not (isinstance(least, int) and isinstance(most, int) and 1 <= least <= most):
        raise OptionError(
            f"num_actors is {num_actors!r}; a number of at least 1, or a minimum and a maximum, is expected",
            code="ray.num_actors",
        )
    return (
        ActorPoolStrategy(size=least) if least == most else ActorPoolStrategy(min_size=least, max_size=most)
    )


def _rows(session: Session) -> int:
    """Return the number of rows for a call of an actor."""
    options = session.backend_options()
    specs = (*session.inputs, *session.outputs)
    rows = session.inputs[0].shape[0] if session.inputs and session.inputs[0].shape else 1
    bytes_each = sum(math.prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in specs)
    in_flight = int(str(options["num_activations"])) * int(str(options["set_size"]))
    return max(rows, 1) * max(1, min(_INFERENCES_IN_FLIGHT * in_flight, _MOST_BYTES // max(bytes_each, 1)))
