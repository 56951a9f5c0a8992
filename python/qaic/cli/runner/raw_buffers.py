"""``qaic-runner -p off``: raw device buffers in place of the program's inputs and outputs.

The runtime converts between the two on its way. Where there is nothing to convert the two are the same bytes,
and the option is honored by running as always; a program with conversions is refused.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from qaic.cli.qpc.qpc_info import facts
from qaic.errors import InputError
from qaic.qpc import Qpc
from qaic.support.text import escape_unprintable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def require_plain_transfers(container: Path) -> None:
    """Refuse a program whose buffers on the device differ from its inputs and outputs.

    Raises
    ------
    InputError
        Lists what is converted.
    """
    described = facts(Qpc(container))
    if described["kind"] != "program":
        reasons = ["it is a container of several, one per device"]
    else:
        bindings = [*described["inputs"], *described["outputs"]]
        reasons = list(_reasons(bindings))
    if reasons:
        raise InputError(
            f"-p off: the buffers of this program on the device are not its inputs and outputs: "
            f"{'; '.join(reasons)}",
            code="runner.raw_buffers",
            hints=("-p on takes and gives the program's own inputs and outputs",),
        )


def _reasons(bindings: list[dict[str, Any]]) -> Iterator[str]:
    users = Counter(binding["dma"]["buffer"] for binding in bindings if binding["dma"] is not None)
    for binding in bindings:
        name = escape_unprintable(repr(binding["name"]))
        kinds = [stage["kind"] for stage in binding["stages"] if stage["kind"] != "copy"]
        if kinds:
            yield f"{name} has {', '.join(kinds)}"
        elif binding["dma"] is None:
            yield f"{name} has no device buffer"
        elif users[binding["dma"]["buffer"]] > 1:
            yield f"{name} shares device buffer {binding['dma']['buffer']}"
