"""Lines of ``qaic-compile`` about what it compiles, and the list of operators that it writes."""

from pathlib import Path

from qaic.compiler.ir.precision import is_quantizing
from qaic.compiler.reports import operator_list
from qaic.compiler.reports.support_report import choose_list
from qaic.options.table import CompileOptions
from qaic.support.atomic_io import write_replacing


def target_line(options: CompileOptions) -> str:
    """Return the line about the target."""
    cores = f"{options.aic_num_cores} core" + ("s" if options.aic_num_cores > 1 else "")
    return f"compiling for the {'card' if options.target == 'card' else 'cpu device'}, {cores}"


def precision_line(options: CompileOptions) -> str:
    """Return the line about the program's precision."""
    parts = [f"precision {'float16' if options.convert_to_fp16 else 'as in the model'}"]
    if is_quantizing(options):
        parts.append(f"quantized to {options.quantization_precision}")
    if options.execute_nodes_in_fp16:
        parts.append(f"float16 for {', '.join(options.execute_nodes_in_fp16)}")
    if options.mxfp6_matmul:
        parts.append("weights of matrix products in MXFP6")
    return "; ".join(parts)


def write_operators(options: CompileOptions, folder: Path) -> str:
    """Write the list of operators that a card takes; returns a line about it.

    Raises
    ------
    OSError
        It cannot be written.
    """
    operators = choose_list(options)
    path = folder / operator_list.TEXT_NAME

    def write(aside: Path) -> None:
        aside.write_text(operators.text(), encoding="utf-8")

    folder.mkdir(parents=True, exist_ok=True)
    write_replacing(path, write)
    kind = "an estimate" if operators.is_estimate else f"from {options.aic_operator_list.path}"  # type: ignore[union-attr]
    return f"wrote {path}: {len(operators.operators)} operators, {kind}"
