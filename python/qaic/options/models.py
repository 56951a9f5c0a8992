"""The option table as typed values: what `qaic.options.resolve` returns.

The rows are declared in `rows`, a module for each section; these classes put the sections together. Names and
defaults are those of the option table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from qaic.options.rows.diagnostics import DiagnosticOptions
from qaic.options.rows.graph import GraphOptions
from qaic.options.rows.precision import PrecisionOptions
from qaic.options.rows.quantization import QuantizationOptions
from qaic.options.rows.run_step import RunStepOptions
from qaic.options.rows.runtime import RuntimeRows
from qaic.options.rows.scheduling import SchedulingOptions
from qaic.options.rows.session import SessionOptions
from qaic.options.spec import OptionSpec, Stage, rows_of

__all__ = ["CompileOptions", "OptionClass", "RunStepOptions", "RuntimeOptions", "SessionOptions", "specs_of"]


# A dataclass takes the fields of its last base first.
@dataclass(frozen=True, kw_only=True)
class CompileOptions(
    DiagnosticOptions, SchedulingOptions, QuantizationOptions, PrecisionOptions, GraphOptions
):
    """Options of the compiler. Ignored when the model is a compiled container."""


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions(RuntimeRows):
    """Options of loading and running."""

    def backend_options(self) -> dict[str, object]:
        """Return the values that may change after construction, by canonical name."""
        return {spec.name: getattr(self, spec.name) for spec in specs_of(RuntimeOptions) if spec.updatable}

    def records_latencies(self) -> bool:
        """Return whether how long each ``run`` took is kept."""
        return bool(self.enable_metrics or self.enable_profiling)

    def run_limit_s(self) -> float | None:
        """Return how long one ``run`` may take: a wait of ``submit_timeout``, and one more for each retry."""
        if not self.submit_timeout:
            return None
        return float(self.submit_timeout * (1 + self.submit_num_retries))


OptionClass: TypeAlias = "type[SessionOptions | CompileOptions | RuntimeOptions | RunStepOptions]"


def specs_of(model: OptionClass) -> tuple[OptionSpec, ...]:
    """Return the rows that are declared in one of the classes above, in their order."""
    sections = {
        name: vars(base)["SECTION"]
        for base in model.__mro__
        if "SECTION" in vars(base)
        for name in vars(base)["__annotations__"]
    }
    return tuple(row.spec(name, _STAGES[model], sections[name]) for name, row in rows_of(model).items())


_STAGES: dict[type, Stage] = {
    SessionOptions: Stage.SESSION,
    CompileOptions: Stage.COMPILE,
    RuntimeOptions: Stage.RUNTIME,
    RunStepOptions: Stage.CLI,
}
