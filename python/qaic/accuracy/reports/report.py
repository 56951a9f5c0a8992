"""Results of a comparison: those of each precision, as text, JSON, page and table."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qaic.accuracy.decoding import STEP_DTYPE, DecodingAccuracy
from qaic.accuracy.metrics import OutputAccuracy, json_value
from qaic.accuracy.reports.page import accuracy_page
from qaic.accuracy.reports.precision_accuracy import NODE_DTYPE, Offender, PrecisionAccuracy
from qaic.accuracy.reports.tables import as_reports, overlay
from qaic.errors import InputError, StateError
from qaic.page.document import write_bytes
from qaic.report.html import report_html
from qaic.report.text import to_text
from qaic.support.atomic_io import replace_bytes


class AccuracyReport:
    """Results of a comparison.

    Parameters
    ----------
    title : str
        Name of the model.
    precisions : tuple of PrecisionAccuracy
        One entry for each precision.
    """

    def __init__(self, title: str, precisions: tuple[PrecisionAccuracy, ...]) -> None:
        self.title = title
        self.precisions = precisions

    def __getitem__(self, to: str) -> PrecisionAccuracy:
        """Return the results of a precision, by its name.

        Raises
        ------
        KeyError
            The precision was not compared.
        """
        for item in self.precisions:
            if item.to == to:
                return item
        raise KeyError(to)

    @property
    def nodes(self) -> NDArray[np.void]:
        """Errors of the nodes of the user's model, in topological order, all precisions one after the other.

        The result is a structured array with one row for each node and these fields:

        * ``to``: the target precision; ``name``: the first output of the node in the user's model;
          ``op_type``; ``precision``: the precision in which the node computes.
        * ``inherited_sqnr_db``: SQNR of the node's result in the deployed program, in dB.
        * ``own_sqnr_db``: SQNR of the deployed node on the inputs of the float32 run, in dB; infinite if the
          node rounds nothing. Both are NaN if the square of a value exceeds float32, as for a mask.
        * ``weights_share``: share of the own error that comes from weights, from 0 to 1.
        * ``overflow``, ``underflow``, ``saturation``: shares of the elements, from 0 to 1.
        * ``minimum``, ``maximum``, ``quantile_999``: range of the float32 results, and the 99.9 % quantile of
          their absolute values; ``outlier_ratio``: largest absolute value divided by this quantile;
          ``channel_ratio``: largest channel divided by the median channel.
        * ``reason``: cause of the loss; ``fused``: tuple of the results in the same fused operation.
        """
        return np.concatenate([item.nodes for item in self.precisions])

    @property
    def outputs(self) -> dict[str, tuple[OutputAccuracy, ...]]:
        """Errors of the outputs by precision."""
        return {item.to: item.outputs for item in self.precisions}

    @property
    def first_offender(self) -> Offender | None:
        """The first offender of the first precision that has one."""
        return next((item.first_offender for item in self.precisions if item.first_offender), None)

    def sentences(self) -> list[str]:
        """Return the verdict as sentences: outputs, first offender, counts."""
        return [line for item in self.precisions for line in item.sentences()]

    def __str__(self) -> str:
        """Return the verdict and tables as text."""
        return self.text()

    def text(self, width: int = 120) -> str:
        """Return the verdict and tables as text of at most `width` columns."""
        return "\n".join(to_text(report, width=width) for report in as_reports(self.title, self.precisions))

    def __repr__(self) -> str:
        """Return the verdicts."""
        verdicts = ", ".join(f"{item.to} {item.verdict}" for item in self.precisions)
        return f"<AccuracyReport {self.title}: {verdicts}>"

    def _repr_html_(self) -> str:
        return "".join(report_html(report) for report in as_reports(self.title, self.precisions))

    def to_json(self) -> dict[str, object]:
        """Return all results as JSON values: NaN becomes None, infinities become ``"inf"`` and ``"-inf"``."""
        return {
            "model": self.title,
            "precisions": [
                {
                    "to": item.to,
                    "verdict": item.verdict,
                    "samples": item.samples,
                    "random_samples": item.is_random,
                    "seconds": item.seconds,
                    "warnings": list(item.warnings),
                    "first_offender": None if item.first_offender is None else _values(item.first_offender),
                    "outputs": [_values(output) for output in item.outputs],
                    "card": [
                        {
                            "name": one.name,
                            "is_more": one.is_more,
                            "is_unrelated": one.is_unrelated,
                            "rounded": _values(one.rounded),
                            "card": _values(one.card),
                            "apart": _values(one.apart),
                        }
                        for one in item.card
                    ],
                    "decoding": None if item.decoding is None else _decoding_json(item.decoding),
                    "nodes": [
                        {name: json_value(row[name]) for name in NODE_DTYPE.names or () if name != "to"}
                        for row in item.nodes
                    ],
                }
                for item in self.precisions
            ],
        }

    def write_json(self, path: str | os.PathLike[str]) -> Path:
        """Write the result of `to_json` to a file atomically, and return its path."""
        target = Path(path)
        replace_bytes(target, json.dumps(self.to_json(), indent=1, allow_nan=False).encode() + b"\n")
        return target

    def to_pandas(self) -> Any:
        """Return the nodes as a ``pandas.DataFrame``.

        Raises
        ------
        StateError
            pandas is not installed.
        """
        try:
            import pandas as pd  # type: ignore[import-untyped,unused-ignore]
        except ImportError as error:
            raise StateError("to_pandas needs pandas: pip install pandas", code="state.no_pandas") from error
        return pd.DataFrame.from_records(self.nodes)

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write one HTML page that needs no network, atomically.

        Raises
        ------
        InputError
            The name does not end in ``.html``.
        OSError
            The file cannot be written.
        """
        if Path(path).suffix.lower() not in {".html", ".htm"}:
            raise InputError(
                f"page: found the name {str(path)!r}, expected one that ends in .html", code="input.page_name"
            )
        page = accuracy_page(as_reports(self.title, self.precisions), self.precisions)
        return write_bytes(path, page.encode())

    def write_overlay(self, path: str | os.PathLike[str], to: str | None = None) -> Path:
        """Write node data, with which Model Explorer colors the graph of the model by inherited SQNR.

        Parameters
        ----------
        path
            JSON file to write; it is written atomically.
        to
            Name of the precision; by default, the first precision of the report.
        """
        target = Path(path)
        item = self.precisions[0] if to is None else self[to]
        replace_bytes(target, json.dumps(overlay(item), allow_nan=False).encode() + b"\n")
        return target


def _decoding_json(found: DecodingAccuracy) -> dict[str, object]:
    return {
        "tokens": found.tokens,
        "equal_tokens": found.equal_tokens,
        "steps": [{name: json_value(row[name]) for name in STEP_DTYPE.names or ()} for row in found.steps],
        "caches": [{"name": cache.name, "sqnr_db": json_value(cache.sqnr_db)} for cache in found.caches],
    }


def _values(found: Offender | OutputAccuracy) -> dict[str, object]:
    return {key: json_value(value) for key, value in asdict(found).items()}
