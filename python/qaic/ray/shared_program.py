"""A program that is sent to the actors of a cluster."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import ray

from qaic.device_claim import claim_devices
from qaic.errors import DeviceLostError, OptionError
from qaic.qpc import Qpc
from qaic.serving.batch_shapes import refuse_state
from qaic.session import Session

if TYPE_CHECKING:
    import onnx

Model: TypeAlias = "str | os.PathLike[str] | bytes | Qpc | onnx.ModelProto"

_logger = logging.getLogger("qaic.ray")

#: name of the resource of Ray that counts devices
RESOURCE: Final = "QAIC"
_RESET_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class SharedProgram:
    """A container in Ray's object store, and its run-time options."""

    #: Reference of the bytes; a node has one copy for all its actors.
    content: ray.ObjectRef[Any]
    #: Run-time options of `qaic.Session`.
    options: Mapping[str, Any]
    #: Devices that a process claims, or 0.
    devices: float

    @classmethod
    def put(cls, model: Model, options: Mapping[str, Any], devices: float) -> "tuple[SharedProgram, Session]":
        """Compile a model if needed and put it into the object store. Blocking.

        Returns the program, and a session that describes it and is not loaded. Raises the errors of
        `qaic.Session`, and QaicError if the program cannot run in several processes.
        """
        if isinstance(devices, bool) or not isinstance(devices, int | float) or devices < 0:
            raise OptionError(
                f"devices={devices!r}; a number for each actor, or a share between 0 and 1, is expected",
                code="option.claim",
            )
        session = Session(model, **options)
        refuse_state(session)
        runtime = session.changed_backend_options()
        if "dev_id" in runtime and devices:
            raise OptionError(
                f"dev_id={runtime['dev_id']!r} names devices, but each actor claims devices of its host",
                code="ray.dev_id",
                hints=("omit dev_id, or pass devices_per_actor=0",),
            )
        # This connects to Ray, if there is no connection yet.
        content = ray.put(session.qpc.content)
        _warn_if_infeasible(float(devices))
        return cls(content, runtime, float(devices)), session

    def ray_resources(self, given: Mapping[str, float] | None) -> dict[str, float]:
        """Return the resources of an actor: the given ones, and the claimed devices."""
        resources = dict(given or {})
        if self.devices:
            resources[RESOURCE] = self.devices
        return resources

    def open(self) -> Session:
        """Claim devices and load the program on them, in an actor. Blocking.

        Raises DeviceError if no device is free, or none can load the program.
        """
        if self.devices:
            claim_devices(self.devices)
        session = Session(memoryview(ray.get(self.content)), **self.options)  # type: ignore[arg-type]
        session.setup()
        return session


def _warn_if_infeasible(devices: float) -> None:
    """Warn that Ray will wait for missing nodes, which Ray itself reports only much later."""
    most = max((node["Resources"].get(RESOURCE, 0) for node in ray.nodes() if node["Alive"]), default=0)
    if devices > most:
        _logger.warning(
            "an actor requests %g of the resource %s, but no node has more than %g, so it waits: start nodes "
            'with --resources="$(openqaic devices --format ray)", or pass 0 as the devices of an actor',
            devices,
            RESOURCE,
            most,
        )


def load_again(session: Session, attempts: int, pause: Callable[[float], object]) -> None:
    """Load a program again after its device was lost. Blocking.

    Raises DeviceError if ``attempts`` attempts failed.
    """
    for attempt in range(attempts):
        pause(0.1 * 4**attempt)
        try:
            session.reset(timeout=_RESET_S)
            session.setup()
        except DeviceLostError:
            if attempt == attempts - 1:
                raise
        else:
            return
