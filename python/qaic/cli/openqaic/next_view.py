"""The command that shows more of a container, whatever it is of."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qaic.qpc import Qpc


def next_view(qpc: Qpc, path: str) -> str:
    """Return a command line that lists the nodes, or what there is instead.

    Parameters
    ----------
    qpc
        The container.
    path
        What the user calls it.
    """
    name = shlex.quote(path)
    if not qpc.is_program:
        return f"qaic-qpc list {name}"
    # The container of a card holds no graph whose nodes could be listed.
    return f"openqaic inspect {name} {'graph -o graph.html' if qpc.graph is None else 'nodes'}"
