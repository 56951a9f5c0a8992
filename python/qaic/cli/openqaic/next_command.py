"""Command lines that a subcommand prints as the next step. They run as they are printed."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Collection
from typing import TYPE_CHECKING

from qaic.cli.openqaic.compile_options import given_options

if TYPE_CHECKING:
    from qaic.qpc import Qpc


def next_command(name: str, arguments: argparse.Namespace, *more: str, without: Collection[str] = ()) -> str:
    """Return the command line of another subcommand for the same model, inputs, device and compile options.

    Parameters
    ----------
    name
        The subcommand.
    arguments
        Arguments of the running subcommand.
    more
        Further words.
    without
        Names of compile options to leave out.
    """
    words = ["openqaic", name, str(arguments.model)]
    for text in getattr(arguments, "inputs", ()):
        words += ["-i", text]
    if getattr(arguments, "device_id", None) is not None:
        words += ["-d", str(arguments.device_id)]
    if arguments.options_path is not None:
        words += ["--options-path", arguments.options_path]
    return shlex.join([*words, *given_options(arguments, without=without), *more])


def next_view(qpc: Qpc, path: str) -> str:
    """Return a command line that lists the nodes of a container, or its other contents if it has no nodes.

    Parameters
    ----------
    qpc
        The container.
    path
        The user's path of the container.
    """
    name = shlex.quote(path)
    if not qpc.is_program:
        return f"qaic-qpc list {name}"
    # The container of a card holds no graph whose nodes could be listed.
    return f"openqaic inspect {name} {'graph -o graph.html' if qpc.graph is None else 'nodes'}"
