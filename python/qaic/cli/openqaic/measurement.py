"""Measurements of a program's operations, which `profile` and `inspect graph --color time` report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qaic.errors import StateError
from qaic.support.status_line import status_line
from qaic.support.text import counted

if TYPE_CHECKING:
    from qaic.qpc import Qpc
    from qaic.stats.reports.capture import Capture

#: from this level on a program measures its operations
STATS_LEVEL: Final = 70


def measured(
    program: Path | Qpc, inputs: Sequence[str] = (), *, warm_up: int = 3, inferences: int = 20, **device: Any
) -> Capture:
    """Run a container and return the measurements of its device. Blocking.

    Parameters
    ----------
    program
        The container.
    inputs
        Arguments ``[NAME=]FILE``; random inputs without them.
    warm_up, inferences
        Number of inferences that are not measured, and that are.
    **device
        Options of the session.

    Raises
    ------
    StateError
        The program was compiled without statistics.
    """
    from qaic import Session
    from qaic.cli.openqaic.tensor_files import read_inputs
    from qaic.runtime.benchmark import random_inputs

    with (
        Session(program, **device) as session,
        status_line(lambda: f"measuring {counted(inferences, 'inference')}"),
    ):
        wanted = session.model_input_shape_dict
        shapes = [shape for shape, _ in wanted.values()]
        feeds = read_inputs(inputs, wanted) if inputs else random_inputs(wanted, shapes)
        for _ in range(warm_up):
            session.run(feeds)
        session.setup()
        with session.profile() as profile:
            for _ in range(inferences):
                session.run(feeds)
    if not profile.device:
        raise StateError(
            f"{session.path} measures nothing: it was compiled without statistics",
            code="profile.not_compiled_in",
            hints=(
                "give the .onnx file, which is compiled with statistics; or compile with --stats-level 70",
            ),
        )
    return profile.capture()
