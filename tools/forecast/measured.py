"""The measured rows and the operation tables of their models, from the committed files."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qaic.forecast.operations import WORK_DTYPE, OperationTable
from qaic.forecast.speed import CARDS, Forecast, Parameters, Settings, forecast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

FOLDER = Path(__file__).parent
#: Rows of the lookup tables in the benchmarking samples of quic/cloud-ai-sdk: two of three models.
ROWS = FOLDER / "ai100_measurements.csv"
TABLES = FOLDER / "operation_tables.json"

#: Largest factor between latency times throughput and the samples in flight, if both are from one run.
_AGREEMENT = 4 / 3


@dataclass(frozen=True)
class Measured:
    """Measured rows as columns, in the order of the file.

    Parameters
    ----------
    rows : list of dict
        The rows as they are in the file.
    keys : array of str
        Names of the operation tables.
    tables : dict
        Operation tables by name.
    """

    rows: list[dict[str, str]]
    keys: NDArray[np.str_]
    tables: dict[str, OperationTable]

    def column(self, name: str) -> NDArray[np.float64]:
        """Return a column of numbers."""
        return np.array([float(row[name]) for row in self.rows])

    def texts(self, name: str) -> NDArray[np.str_]:
        """Return a column of texts."""
        return np.array([row[name] for row in self.rows])

    @cached_property
    def _codes(self) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
        names, codes = np.unique(self.keys, return_inverse=True)
        return names, codes

    @cached_property
    def settings(self) -> Settings:
        """Configurations of the rows."""
        return Settings(*(self.column(name) for name in ("cores", "instances", "batch", "set_size")))

    @cached_property
    def measured(self) -> NDArray[np.float64]:
        """Logarithms of samples per second and of seconds, in two columns."""
        return np.log(np.stack([self.column("inferences_per_s"), self.column("latency_ms") / 1e3], axis=1))

    @property
    def is_language(self) -> NDArray[np.bool_]:
        """True for text transformers."""
        is_language: NDArray[np.bool_] = np.char.startswith(self.texts("table"), "nlp")
        return is_language

    @cached_property
    def agrees(self) -> NDArray[np.bool_]:
        """True if latency and throughput can be from one run: their product is the samples in flight."""
        _, instances, batch, set_size = self.settings
        ratio = self.measured.sum(axis=1) - np.log(instances * batch * set_size)
        agrees: NDArray[np.bool_] = np.abs(ratio) < np.log(_AGREEMENT)
        return agrees

    def groups(self, rows: NDArray[np.int64]) -> Iterator[tuple[OperationTable, NDArray[np.int64]]]:
        """Yield each operation table with those of the given rows that belong to its model."""
        names, codes = self._codes
        order = rows[np.argsort(codes[rows], kind="stable")]
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        for own in np.split(order, starts[1:]):
            yield self.tables[names[codes[own[0]]]], own

    def forecast(self, parameters: Parameters, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the forecasts of some rows, in the form of `measured`."""
        found = np.zeros((len(self.rows), 2))
        for table, of in self.groups(rows):
            settings = Settings(*(values[of] for values in self.settings))
            made: Forecast = forecast(table, settings, parameters, CARDS["standard"])
            found[of] = np.log(np.stack([made.samples_per_s, made.latency_s], axis=1))
        return found[rows]


def table_key(row: dict[str, str]) -> str:
    """Return the name of the operation table of a row."""
    return f"{row['model']}|{row['task']}|{row['size']}"


def to_json(table: OperationTable) -> dict[str, object]:
    """Return an operation table as JSON values."""
    names = ("samples", "input_bytes", "output_bytes", "state_bytes")
    rows = [[int(value) for value in row] for row in table.rows.tolist()]
    return {**{name: getattr(table, name) for name in names}, "rows": rows}


def read() -> Measured:
    """Read the committed files."""
    with ROWS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    tables = {
        key: OperationTable(**{**value, "rows": np.array(list(map(tuple, value["rows"])), WORK_DTYPE)})
        for key, value in json.loads(TABLES.read_text()).items()
    }
    return Measured(rows, np.array([table_key(row) for row in rows]), tables)
