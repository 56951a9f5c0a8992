"""Needs of a program on a device, and the number of its activations that fit there at once."""

from collections.abc import Mapping, Sequence
from typing import Any

from qaic.cli.qpc.stored_weights import stored_weights
from qaic.errors import StateError
from qaic.qpc import Qpc
from qaic.support.program_names import RETAINED_STATE_SUFFIX

_MIB = 1 << 20


def program_fit(qpc: Qpc, devices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compare what a program takes with what devices have.

    Parameters
    ----------
    qpc : Qpc
        The container.
    devices : sequence of mapping
        Devices as ``openqaic devices --json`` lists them.

    Returns
    -------
    dict
        ``cores`` and ``memory_bytes`` of one activation on each of its ``devices``, of the memory the
        ``constants_bytes`` and the ``state_bytes`` that it retains between inferences; the ``weights`` that
        are used where they are mapped, as of :func:`~qaic.cli.qpc.stored_weights.stored_weights`; and a row
        for each device in ``fits``: ``activations`` of the empty device, those that fit ``now``, and what is
        ``limited_by``.

    Raises
    ------
    StateError
        The container holds a slice for each of several devices.
    """
    if not qpc.is_program:
        raise StateError(
            f"{qpc.path} is a container of containers, one for each device; what each of them takes differs",
            code="inspect.slices",
            hints=("extract them with qaic-qpc extract, and inspect each",),
        )
    info, constants = qpc.program_info, qpc.constants
    plan = qpc.plan or {}
    needed = {"cores": max(1, info.num_cores), "memory": -(-info.total_required_memory // _MIB)}
    return {
        "cores": needed["cores"],
        "devices": plan.get("devices", 1),
        "memory_bytes": info.total_required_memory,
        "constants_bytes": sum(
            0 if part is None else part.nbytes for part in (constants.static, constants.dynamic)
        ),
        "state_bytes": _state_bytes(qpc),
        "weights": stored_weights(qpc),
        "fits": [_fits(needed, device) for device in devices],
    }


def _state_bytes(qpc: Qpc) -> int:
    """Sum what the program retains; its outputs that are states have a name of their own."""
    from qaic.cli.qpc.qpc_info import facts

    outputs = facts(qpc)["outputs"]
    return sum(output["bytes"] or 0 for output in outputs if output["name"].endswith(RETAINED_STATE_SUFFIX))


def _fits(needed: Mapping[str, int], device: Mapping[str, Any]) -> dict[str, Any]:
    """Count activations of one program on one device."""
    total = {"cores": device["nsp_total"], "memory": device["dram_total_mb"]}
    free = {"cores": device["nsp_free"], "memory": device["dram_free_mb"]}
    most = {name: total[name] // amount for name, amount in needed.items() if amount}
    return {
        "device": device["id"],
        "name": device["name"],
        "activations": min(most.values()),
        "now": min(free[name] // amount for name, amount in needed.items() if amount),
        "limited_by": min(most, key=most.__getitem__),
    }
