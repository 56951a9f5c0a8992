"""Cloud AI 100 as an accelerator of Ray: nodes detect their cards, and Ray assigns cards to actors by id.

Ray has a fixed list of accelerators. `QAICAcceleratorManager` has the form of Ray's own managers, and
`register` adds it to the list in the calling process. Until Ray contains it, start Ray with

    import qaic_accelerator, ray

    qaic_accelerator.register()
    ray.init(**qaic_accelerator.init_options())

The node then has one unit of ``QAIC`` for each card, and each actor has ``QAIC_VISIBLE_DEVICES``. Without
this module, use ``--resources="$(openqaic devices --format ray)"``; actors then claim cards themselves.
"""

from __future__ import annotations

import os

from ray._private import accelerators
from ray._private.accelerators.accelerator import AcceleratorManager

RESOURCE = "QAIC"
VISIBLE_DEVICES = "QAIC_VISIBLE_DEVICES"
KEEP_VISIBLE_DEVICES = "RAY_EXPERIMENTAL_NOSET_QAIC_VISIBLE_DEVICES"


class QAICAcceleratorManager(AcceleratorManager):
    """Cloud AI 100 cards, real or virtual."""

    @staticmethod
    def get_resource_name() -> str:
        """Return the name of the resource."""
        return RESOURCE

    @staticmethod
    def get_visible_accelerator_ids_env_var() -> str:
        """Return the variable that lists the cards of a process."""
        return VISIBLE_DEVICES

    @staticmethod
    def get_current_node_num_accelerators() -> int:
        """Count the cards that are ready; 0 if the package is missing."""
        return len(_ready())

    @staticmethod
    def get_current_node_accelerator_type() -> str | None:
        """Return the family of the cards."""
        families = {device.family for device in _ready()}
        return families.pop().upper() if len(families) == 1 else None

    @staticmethod
    def get_current_node_additional_resources() -> dict[str, float] | None:
        """Return nothing: a node has no additional resources."""
        return None

    @staticmethod
    def validate_resource_request_quantity(quantity: float) -> tuple[bool, str | None]:
        """Allow whole cards, and shares of one card."""
        if quantity > 1 and not float(quantity).is_integer():
            return False, f"{RESOURCE} is {quantity}; a whole number, or a share of one card, is expected"
        return True, None

    @staticmethod
    def get_current_process_visible_accelerator_ids() -> list[str] | None:
        """Return the cards of this process; None means all."""
        # An empty list means all, as in `qaic`.
        return [one.strip() for one in os.environ.get(VISIBLE_DEVICES, "").split(",") if one.strip()] or None

    @staticmethod
    def set_current_process_visible_accelerator_ids(ids: list[str]) -> None:
        """Make only these cards visible to this process."""
        if os.environ.get(KEEP_VISIBLE_DEVICES, "0") in ("", "0"):
            os.environ[VISIBLE_DEVICES] = ",".join(map(str, ids))


def _ready() -> list:
    try:
        import qaic
    except ImportError:
        return []
    return [device for device in qaic.devices() if device.is_ready]


def register() -> None:
    """Add the manager to the list in this process."""
    known = accelerators.get_all_accelerator_managers()
    if QAICAcceleratorManager in known:
        return
    accelerators.get_all_accelerator_managers = lambda: {*known, QAICAcceleratorManager}
    # Ray builds this mapping at its first use, from the earlier list.
    accelerators.get_accelerator_manager_for_resource.__dict__.clear()


def init_options() -> dict[str, object]:
    """Return options of ``ray.init`` that assign ids to units and register the manager in workers."""
    return {
        "_system_config": {"custom_unit_instance_resources": f"{_own_unit_resources()},{RESOURCE}"},
        "runtime_env": {"worker_process_setup_hook": f"{__name__}.register"},
    }


def _own_unit_resources() -> str:
    names = {manager.get_resource_name() for manager in accelerators.get_all_accelerator_managers()}
    return ",".join(sorted(names - {"GPU", RESOURCE}))
