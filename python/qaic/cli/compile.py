"""``qaic-compile``, also under its older name ``qaic-exec``: an ONNX model to a program container.

The flags are those of the option table, with one dash and ``=`` before the value (compile-options §1.2); two
dashes are accepted too.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from qaic.cli import _common
from qaic.cli._common import SUCCESS, USAGE, complain, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qaic.options.spec import Flag

_USAGE = "usage: qaic-compile -m=MODEL.onnx [-aic-binary-dir=DIR] [-OPTION[=VALUE] ...]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit code."""
    return _common.run(_tool, argv)


def _tool(argv: Sequence[str]) -> int:
    if any(argument in {"-h", "-help", "--help"} for argument in argv):
        show(_help())
        return SUCCESS
    try:
        given = _given(argv)
    except ValueError as error:
        return _refuse(str(error))
    model = given.pop("model_path", None)
    if not isinstance(model, str):
        return _refuse("no model; -m=MODEL.onnx is expected")
    return _compile(model, given)


def _compile(model_path: str, given: dict[str, object]) -> int:
    from qaic.compiler import compile_model
    from qaic.errors import OptionError
    from qaic.model_path import find_model
    from qaic.options import resolve

    model = find_model(model_path)
    resolved = resolve(given, options_path=None, model_is_container=False)
    if model.is_container:
        raise OptionError(
            f"{model.path} is a compiled container; an .onnx file is expected",
            code="option.model_path",
            context={"path": str(model.path)},
        )
    options = resolved.compile
    path = compile_model(model.path, options, resolved.set_compile, output_dir=options.output_dir)
    show(f"compiled {path}")
    return SUCCESS


def _refuse(message: str) -> int:
    complain("error", message)
    complain("hint", "qaic-compile -h shows the options")
    return USAGE


def _flags() -> dict[str, tuple[str, Flag]]:
    """Canonical name and flag of each option, by the flag's text."""
    from qaic.options.table import SPECS

    return {spec.flag.text: (spec.name, spec.flag) for spec in SPECS if spec.flag is not None}


def _given(argv: Sequence[str]) -> dict[str, object]:
    """Options by canonical name, or by the text of a flag that the table has not: `resolve` refuses it.

    Raises
    ------
    ValueError
        An argument is no flag, a value is missing, or a flag that takes one value is there twice.
    """
    from qaic.options.spec import FlagForm

    flags = _flags()
    given: dict[str, object] = {}
    arguments = iter(argv)
    for argument in arguments:
        if not argument.startswith("-"):
            message = f"unexpected argument {argument}; options begin with a dash"
            raise ValueError(message)
        text, is_assigned, value = argument.removeprefix("-").removeprefix("-").partition("=")
        name, flag = flags.get(text, (text, None))
        if flag is None or flag.form is FlagForm.SWITCH:
            given[name] = value if is_assigned else True
        else:
            if not is_assigned and (next_one := next(arguments, None)) is not None:
                value = next_one
            elif not is_assigned:
                message = f"-{text} needs a value: -{text}=VALUE"
                raise ValueError(message)
            _add(given, name, value, repeats=flag.form is FlagForm.REPEAT, text=text)
    return given


def _add(given: dict[str, object], name: str, value: str, *, repeats: bool, text: str) -> None:
    before = given.get(name)
    if repeats:
        given[name] = [*before, value] if isinstance(before, list) else [value]
    elif before is None or before == value:
        given[name] = value
    else:
        message = f"-{text} is given twice: {before} and {value}"
        raise ValueError(message)


def _help() -> str:
    from qaic.options.spec import FlagForm, Stage
    from qaic.options.table import SPECS

    lines = [_USAGE, "", "Compile an ONNX model to a program container for the cpu device.", ""]
    for spec in SPECS:
        if spec.flag is None or spec.stage is Stage.RUNTIME:
            continue
        shown = f"-{spec.flag.text}" + ("" if spec.flag.form is FlagForm.SWITCH else "=VALUE")
        lines += [f"  {shown}", f"        {spec.summary}"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
