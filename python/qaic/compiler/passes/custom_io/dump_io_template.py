"""The template of a custom I/O file: every input and output as the model has it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from qaic.compiler.ir.context import Context, SideFile
from qaic.compiler.ir.elem_types import BFLOAT16, FLOAT, FLOAT16
from qaic.compiler.ir.interface import Interface, TensorSpec
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.pass_contract import WithOption

_PRECISIONS: Final = {FLOAT: "float", FLOAT16: "float16", BFLOAT16: "bfloat16"}

_HEAD: Final = """\
# Custom I/O: the tensors of the program as the model has them. Keep the entries that shall change, edit
# them, and pass the file as custom_io_list_file (-custom-IO-list-file).
#   Layout:    NCHW or NHWC, of tensors with 4 dims
#   Precision: float, float16, bfloat16, mxint8, or int8 with Scale and Offset: real = Scale x (q - Offset)
"""


def template_of(interface: Interface, path: Path) -> SideFile:
    """Describe the template that a compilation writes.

    Parameters
    ----------
    interface : Interface
        Inputs and outputs as the model has them.
    path : Path
        File to write.
    """
    text = "".join([_HEAD, *_side("inputs", interface.inputs), *_side("outputs", interface.outputs)])
    return SideFile(path, lambda temporary: _write(temporary, text))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _side(what: str, specs: Iterable[TensorSpec]) -> Iterable[str]:
    yield f"\n# {what}\n"
    for spec in specs:
        precision = _PRECISIONS.get(spec.elem_type)
        # A JSON string is a YAML one, whatever the name is made of.
        name = json.dumps(spec.name)
        if precision is None:
            yield f"\n# - IOName: {name}\n#   {spec.dtype} {list(spec.dims)}: integers keep their type\n"
            continue
        yield f"\n - IOName: {name}\n"
        if len(spec.dims) == 4:
            yield "   Layout: NCHW\n"
        yield f"   Precision: {precision}\n   # Scale: 1.0\n   # Offset: 0\n"


class DumpIoTemplate(WithOption):
    """Describe the inputs and outputs in a custom I/O file that the user may edit."""

    name = "dump-io-template"
    option = "dump_custom_io_config_template_file"

    def run(self, model: Model, context: Context) -> bool:
        """Note the file."""
        path = context.options.dump_custom_io_config_template_file
        if path is not None:
            context.side_files.append(template_of(model.interface, path))
        return False
