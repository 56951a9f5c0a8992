"""Where ``qaic-compile`` writes, and what it says about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic.compiler.ir.precision import is_quantizing
from qaic.compiler.reports import operator_list
from qaic.compiler.reports.emit_report import DEBUG_FOLDER
from qaic.compiler.reports.support_report import choose_list
from qaic.errors import OptionError, QpcError
from qaic.support.atomic_io import write_replacing
from qaic.support.program_names import QPC_FILE_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from qaic.options.models import CompileOptions


def check_replaceable(folder: Path, target: str) -> None:
    """Refuse a directory whose content a compilation might destroy.

    Parameters
    ----------
    folder
        Directory for the container.
    target
        A container for the CPU device replaces only one that was made here. For a card any container is
        replaced: those of the vendor's compiler do not say what has started it.

    Raises
    ------
    OptionError
        It holds something, and no such container.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise _refused(folder, "it is no directory")
    # A compilation that failed leaves the graphs that were asked for.
    held = sorted(path.name for path in folder.iterdir() if path.name != DEBUG_FOLDER)
    if not held:
        return
    if QPC_FILE_NAME not in held:
        raise _refused(folder, f"it holds {held[0]}" + (" and more" if len(held) > 1 else ""))
    from qaic.qpc import Qpc

    try:
        found = Qpc(folder / QPC_FILE_NAME)
        is_replaceable = target == "card" or found.target == "cpu"
    except (OSError, QpcError):
        is_replaceable = False
    if not is_replaceable:
        raise _refused(folder, f"its {QPC_FILE_NAME} was not made by openqaic")


def target_line(options: CompileOptions) -> str:
    """Say what is compiled for."""
    cores = f"{options.aic_num_cores} core" + ("s" if options.aic_num_cores > 1 else "")
    return f"compiling for the {'card' if options.target == 'card' else 'cpu device'}, {cores}"


def precision_line(options: CompileOptions) -> str:
    """Say what the program computes in."""
    parts = [f"precision {'fp16' if options.convert_to_fp16 else 'as in the model'}"]
    if is_quantizing(options):
        parts.append(f"quantized to {options.quantization_precision}")
    if options.execute_nodes_in_fp16:
        parts.append(f"fp16 for {', '.join(options.execute_nodes_in_fp16)}")
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


def _refused(folder: Path, reason: str) -> OptionError:
    return OptionError(
        f"-aic-binary-dir={folder}: {reason}; expected a directory that is missing, empty, or holds a "
        f"container of openqaic, which is replaced",
        code="option.output_dir",
        context={"options": ["output_dir"], "path": str(folder)},
        hints=("remove the directory, or choose another one",),
    )
