"""A replica of Ray Serve that serves one model."""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from ray import serve

from qaic.errors import DeviceLostError
from qaic.model_path import find_model
from qaic.ray.shared_program import Model, SharedProgram
from qaic.serving.batcher import MAX_QUEUE_SIZE
from qaic.serving.http_app import HttpApp
from qaic.serving.limits import Limits
from qaic.serving.model_config import ModelSettings
from qaic.serving.model_sources import name_of
from qaic.serving.repository import Repository
from qaic.serving.server_state import ServerState
from qaic.session import Session

if TYPE_CHECKING:
    from ray.serve import Application

#: requests that Serve sends to a replica at once; requests that Serve holds back cannot share a batch
_ONGOING_REQUESTS: Final = 256
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SharedSource:
    """The model of a replica, as a source of models."""

    program: SharedProgram
    model_settings: ModelSettings

    def settings(self) -> ModelSettings:
        """Return the settings of the model."""
        return self.model_settings

    def programs(self, _settings: ModelSettings) -> Mapping[int, Callable[[], Session]]:
        """Return the function that claims devices and loads the program."""
        return {_VERSION: self.program.open}


class Replica:
    """One replica. Its constructor loads the model, without blocking the event loop."""

    async def __init__(self, source: SharedSource) -> None:  # type: ignore[misc]
        name = source.model_settings.name
        loop = asyncio.get_running_loop()
        self._repository = Repository(lambda: {name: source}, drain_s=0.0, schedule=loop.call_soon)
        await asyncio.to_thread(self._repository.load_all)
        self._name = name
        # Serve replaces replicas, so clients cannot.
        self._http = HttpApp(ServerState(self._repository, Limits(model_control=False)))

    def __serve_build_asgi_app__(self) -> Any:
        """Return the application that answers HTTP requests."""
        return self._http.app

    async def infer(
        self, inputs: Mapping[str, NDArray[Any]], timeout_s: float | None = None
    ) -> dict[str, NDArray[Any]]:
        """Answer one request of another deployment.

        Parameters
        ----------
        inputs
            Name -> array with 1 to as many rows as the batch has.
        timeout_s
            Time limit in seconds.

        Returns
        -------
        dict
            Name -> array in its own memory.

        Raises
        ------
        qaic.errors.QaicError
            As `qaic.serving.batcher.Batcher.submit`, and the errors of the inference.
        """
        _, outputs = await self._repository.infer(self._name, "", inputs, timeout_s)
        return {name: np.ascontiguousarray(array) for name, array in outputs.items()}

    async def check_health(self) -> None:
        """Raise an error if requests are not answered; Serve then replaces the replica.

        Raises DeviceLostError if the device is lost.
        """
        if not self._repository.is_ready:
            raise DeviceLostError(
                f"model {self._name!r} waits for its device, which was lost",
                code="serving.device_lost",
                hints=("Ray Serve starts another replica",),
            )

    async def __del__(self) -> None:
        """Release the devices."""
        await asyncio.to_thread(self._repository.close)


def bind_application(
    model: Model,
    name: str | None,
    *,
    devices: float,
    max_queue_delay_s: float,
    max_queue_size: int | None,
    default_timeout_s: float | None,
    options: Mapping[str, Any],
    deployment_options: dict[str, Any],
) -> "Application":
    """Implement :func:`qaic.ray.deployment`."""
    program, session = SharedProgram.put(model, options, devices)
    if name is None:
        name = name_of(find_model(model).path) if isinstance(model, str | os.PathLike) else "model"
    values = session.backend_options()
    settings = ModelSettings(
        name,
        set_size=int(str(values["set_size"])),
        num_activations=int(str(values["num_activations"])),
        max_queue_delay_s=max_queue_delay_s,
        max_queue_size=MAX_QUEUE_SIZE if max_queue_size is None else max_queue_size,
        default_timeout_s=default_timeout_s,
    )
    actor_options = dict(deployment_options.pop("ray_actor_options", None) or {})
    actor_options["resources"] = program.ray_resources(actor_options.get("resources"))
    deployed = serve.deployment(
        name=name,
        ray_actor_options=actor_options,
        **{"max_ongoing_requests": _ONGOING_REQUESTS, **deployment_options},
    )(serve.ingress()(Replica))
    return deployed.bind(SharedSource(program, settings))
