"""Fits the parameters of the forecast: ``PYTHONPATH=tools python -m forecast.fit``.

The command writes ``python/qaic/forecast/parameters.json``, which the wheel contains, and ``left_out.json``
with the parameters that are fitted without each model. A fit minimizes a robust loss of the logarithms of
throughput and latency.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

import numpy as np

from forecast import figures
from forecast.measured import FOLDER, Measured, read
from qaic.forecast.speed import Parameters

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEFT_OUT = FOLDER / "left_out.json"
TWINS_LEFT_OUT = FOLDER / "twins_left_out.json"
PARAMETERS = FOLDER.parents[1] / "python" / "qaic" / "forecast" / "parameters.json"

#: Start of a fit; parameters that the rows do not determine stay near it.
START = Parameters(
    mac_rate=3.5e12, depthwise_rate=8e10, depth_half=36, width_half=11, step_rate=35e9, function_rate=12e9,
    ddr_rate=116e9, kept_bytes=8e6, operation_s=5e-7, cut_s=4e-8, cut_loss=0.15, request_s=1.4e-4,
    input_rate=11.9e9, output_rate=10.6e9, host_input_rate=3.1e9, host_output_rate=6e9,
)  # fmt: skip
_NAMES = [field.name for field in fields(Parameters)]
#: Weight of a distance from `START`, as one residual.
_PULL = 0.02
#: Logarithm above which the weight of a residual decreases.
_SCALE = 0.1
_STEP = 1e-4


def fit(data: Measured, rows: NDArray[np.int64], start: Parameters = START, *, most: int = 40) -> Parameters:
    """Fit all parameters to some rows with the method of Levenberg and Marquardt and a soft absolute loss."""
    first = _vector(START)
    x, damping = _vector(start), 1e-2
    target, counted = data.measured[rows], np.ones((len(rows), 2))
    counted[:, 1] = data.agrees[rows]

    def residuals(at: NDArray[np.float64]) -> NDArray[np.float64]:
        apart = (target - data.forecast(_parameters(at), rows)) * counted
        return np.concatenate([apart.ravel(), _PULL * (at - first)])

    def loss(values: NDArray[np.float64]) -> float:
        return float((np.sqrt(1 + (values / _SCALE) ** 2) - 1).sum())

    now = residuals(x)
    for _ in range(most):
        slope = np.stack([(residuals(x + _STEP * unit) - now) / _STEP for unit in np.eye(len(x))], axis=1)
        weight = 1 / np.sqrt(1 + (now / _SCALE) ** 2)
        curve, pull = slope.T @ (weight[:, None] * slope), slope.T @ (weight * now)
        before = loss(now)
        while damping < 1e6:
            step = np.linalg.solve(curve + damping * np.diag(np.diag(curve)), -pull)
            tried = residuals(x + step)
            if loss(tried) < before:
                break
            damping *= 10
        else:
            break
        x, now, damping = x + step, tried, damping / 10
        if before - loss(now) < 1e-4 * before:
            break
    return _parameters(x)


def _vector(parameters: Parameters) -> NDArray[np.float64]:
    return np.log([getattr(parameters, name) for name in _NAMES])


def _parameters(vector: NDArray[np.float64]) -> Parameters:
    return Parameters(*(float(value) for value in np.exp(vector)))


def rounded(parameters: Parameters) -> dict[str, float]:
    """Return the parameters with four digits, as in the files."""
    return {name: float(f"{value:.4g}") for name, value in asdict(parameters).items()}


def without_each(
    data: Measured, groups: NDArray[np.str_] | NDArray[np.int64], start: Parameters
) -> dict[str, dict[str, float]]:
    """Fit all rows except those of each group, starting with the fit of all rows."""
    found = {}
    for group in np.unique(groups).tolist():
        found[str(group)] = rounded(fit(data, np.flatnonzero(groups != group), start, most=4))
        print(group, flush=True)
    return found


def main() -> None:
    """Fit all rows, then all rows except those of each model, and write the files."""
    data = read()
    whole = fit(data, np.arange(len(data.rows)))
    apart = without_each(data, data.texts("model"), whole)
    for path, found in ((LEFT_OUT, apart), (TWINS_LEFT_OUT, without_each(data, figures.twins(data), whole))):
        lines = [f"{json.dumps(name)}: {json.dumps(parameters)}" for name, parameters in found.items()]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    shipped = figures.shipped(data, rounded(whole), figures.held_out(data, apart))
    PARAMETERS.write_text(json.dumps(shipped, indent=1) + "\n")


if __name__ == "__main__":
    main()
