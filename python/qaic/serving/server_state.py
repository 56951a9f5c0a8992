"""What the protocols of a server share: its models, its limits, and whether it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from qaic import __version__
from qaic.errors import StateError

if TYPE_CHECKING:
    from qaic.serving.limits import Limits
    from qaic.serving.repository import Repository

_EXTENSIONS: Final = ("binary_tensor_data", "model_repository", "model_configuration", "statistics")


@dataclass(slots=True)
class ServerState:
    """State of a server, one for all its protocols.

    Parameters
    ----------
    repository
        The models.
    limits
        What a client may ask for.
    is_draining
        Whether the server ends.
    """

    repository: Repository
    limits: Limits
    is_draining: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether every model answers, and will for a while."""
        return self.repository.is_ready and not self.is_draining

    @staticmethod
    def metadata() -> dict[str, Any]:
        """Describe the server in the form of the protocol."""
        return {"name": "openqaic", "version": __version__, "extensions": _EXTENSIONS}

    def check_model_control(self) -> None:
        """Refuse a client's load or unload where the server was started without.

        Raises
        ------
        qaic.errors.StateError
            It was.
        """
        if not self.limits.model_control:
            raise StateError(
                "this server was started without model control; models cannot be loaded or unloaded",
                code="serving.model_control",
            )
