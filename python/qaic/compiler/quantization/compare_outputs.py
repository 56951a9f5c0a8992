"""Comparison of a quantized graph with the float graph, on the first sample that calibrated it."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic.compiler.calibration.collector import load_program, mean_square, write_instrumented
from qaic.compiler.diagnostics.messages import refuse, warn
from qaic.compiler.ir.graph_walk import RANDOM, op_types
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.errors import InferenceError
from qaic.options.table import is_quantizing

#: least ratio of an output to its error, in dB; below it, the results of a network are different
_LEAST_DB: Final = 10.0


@compiler_pass(lambda context: is_quantizing(context.options))
def compare_outputs_pass(model: Model, context: Context) -> None:
    """Run the quantized graph on the first sample, and warn about outputs that differ from float32."""
    example = None if context.profile is None else context.profile.example
    is_quantized = context.quantization is not None and any(True for _ in context.quantization.groups())
    if example is None or not is_quantized or not op_types(model.proto).isdisjoint(RANDOM):
        return
    with context.work_folder() as folder:
        path = folder / "program.bin"
        write_instrumented(path, model, context, ())
        try:
            found = load_program(path).run(dict(example.inputs), None, list(example.outputs), None)
        except InferenceError as error:
            raise refuse(
                "the quantized graph",
                code="quantized_inference",
                found=f"a failure on the first sample ({error.message})",
                expected="a graph that runs",
                fix="keep its nodes in floating point: node_precision_info_file",
            ) from error
    # A sample with a small output is judged by the size of the output for others.
    ratios = {
        name: _decibels(example.powers[name], _error(expected, found[name]))
        for name, expected in example.outputs.items()
    }
    lossy = {name: ratio for name, ratio in ratios.items() if ratio < _LEAST_DB}
    if not lossy:
        return
    worst = min(lossy, key=lossy.__getitem__)
    more = f" (and {len(lossy) - 1} more)" if len(lossy) > 1 else ""
    options = context.options
    is_random = options.input_list_file is None and options.calibration_data is None
    samples = "" if is_random else " --samples FILE"
    warn(
        "quantization.inaccurate_outputs",
        f"quantization: output {worst!r}{more} differs from float32 on the first calibration sample: found "
        f"an SQNR of {lossy[worst]:.1f} dB, expected at least {_LEAST_DB:.0f} dB; `openqaic accuracy MODEL "
        f"--to {options.quantization_precision.lower()}{samples}` finds the nodes that cause the error, and "
        "node_precision_info_file keeps them in floating point",
        nodes=sorted(lossy),
    )


def _error(expected: NDArray[Any], found: NDArray[Any]) -> float:
    """Return the mean square of the error, infinite if only `expected` is finite."""
    is_finite = np.isfinite(expected)
    if not np.isfinite(found[is_finite]).all():
        return np.inf
    return mean_square(found[is_finite].astype(np.float64) - expected[is_finite])


def _decibels(power: float, error: float) -> float:
    """Return a ratio of powers; infinite if there is no power or no error."""
    if power and np.isinf(error):
        return -np.inf
    return float(10 * np.log10(power / error)) if power and error else np.inf
