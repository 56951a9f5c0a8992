"""The help text of ``qaic-compile -h``."""

from qaic.options.help_text import render_help
from qaic.options.spec import Stage


def help_text(name: str, *, runs: bool) -> str:
    """Write the help of ``qaic-compile`` or ``qaic-exec``."""
    what = "Compile an ONNX model to a program container" + (" and run it." if runs else ".")
    return "\n".join(
        [
            f"usage: {name} -m=MODEL.onnx -aic-binary-dir=DIR [-OPTION[=VALUE] ...]",
            "",
            what,
            "",
            render_help(tuple(Stage)).rstrip("\n"),
        ]
    )
