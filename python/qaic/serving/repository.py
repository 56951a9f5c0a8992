"""Finds, loads, replaces and unloads the models of a server while others answer."""

import asyncio
import collections
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from numpy.typing import NDArray

from qaic.errors import OptionError, QaicError, StateError
from qaic.serving.model_sources import ModelSource
from qaic.serving.served_model import ServedModel
from qaic.serving.statistics import Metrics

_logger = logging.getLogger("qaic.serving")

#: seconds that a stopping server waits for a running load
_LONGEST_CHANGE_S: Final = 1.0


class Repository:
    """Models of a source.

    `find_sources` finds the present models, by name, and blocks. Requests of an unloaded model have `drain_s`
    seconds to end; `max_loads` loads and unloads of clients may run or wait; `schedule` is that of `Batcher`.
    """

    def __init__(
        self,
        find_sources: Callable[[], Mapping[str, ModelSource]],
        *,
        drain_s: float,
        max_loads: int = 8,
        schedule: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._find_sources = find_sources
        self._drain_s = drain_s
        self._schedule = schedule
        self.metrics = Metrics(
            lambda: ((one.name, one.version, one.is_ready, one.batcher) for one in self.loaded())
        )
        self._models: dict[str, dict[int, ServedModel]] = {}
        # Names of all models that were found, and the reason if one is not loaded.
        self._reasons: dict[str, str] = {}
        # This lock is held while models are loaded and replaced; responses never wait for it.
        self._changes = threading.Lock()
        self._max_loads = max_loads
        # The running and the waiting changes belong to the event loop.
        self._is_changing = False
        self._turns: collections.deque[asyncio.Future[None]] = collections.deque()
        self._is_ending = False

    # --- loaded models --------------------------------------------------------------------------------------

    def loaded(self) -> list[ServedModel]:
        """Return all versions of all models that are loaded."""
        return [model for versions in list(self._models.values()) for model in versions.values()]

    def find(self, name: str, version: str = "") -> ServedModel:
        """Return a model; of several versions the highest, unless one is named.

        Raises StateError if there is no such model (``serving.unknown_model``).
        """
        versions = self._models.get(name)
        if not versions:
            reason = self._reasons.get(name)
            raise StateError(
                f"model {name[:200]!r} is not loaded: {reason}"
                if reason
                else f"model {name[:200]!r} does not exist; the server has {sorted(self._models)}",
                code="serving.unknown_model",
            )
        if not version:
            return versions[max(versions)]
        # The version is compared as text, because a path may contain a number of any length.
        model = next((model for number, model in versions.items() if str(number) == version), None)
        if model is None:
            raise StateError(
                f"model {name!r} has no version {version[:80]!r}; it has {sorted(versions)}",
                code="serving.unknown_model",
            )
        return model

    async def infer(
        self, name: str, version: str, inputs: Mapping[str, NDArray[Any]], timeout_s: float | None
    ) -> tuple[ServedModel, dict[str, NDArray[Any]]]:
        """Answer one request; also return the model that answered, which may be the replacement.

        Raises the errors of `find` and `ServedModel.infer`.
        """
        while True:
            model = self.find(name, version)
            try:
                return model, await model.infer(inputs, timeout_s)
            except StateError as error:
                if error.code != "serving.closed" or self._models.get(name, {}).get(model.version) is model:
                    raise

    def converted(
        self, name: str, version: str, inputs: Mapping[str, NDArray[Any]]
    ) -> dict[str, NDArray[Any]]:
        """Return inputs in the types of a model, which `infer` converts otherwise. Any thread may call it.

        Raises the errors of `find`, and QaicError for a type that does not convert.
        """
        return self.find(name, version).shapes.converted(inputs)

    def versions(self, name: str) -> list[int]:
        """Return the versions of a model that are loaded."""
        return sorted(self._models.get(name, ()))

    @property
    def is_ready(self) -> bool:
        """Return True if every model that was found is ready."""
        return not any(self._reasons.values()) and all(model.is_ready for model in self.loaded())

    def index(self, *, only_ready: bool = False) -> list[dict[str, str]]:
        """List all models that were found, in the form of the protocol."""
        rows = []
        for name in sorted({*self._reasons, *self._models}):
            for version, model in sorted(self._models.get(name, {}).items()):
                state = "READY" if model.is_ready else "UNAVAILABLE"
                rows.append({"name": name, "version": str(version), "state": state, "reason": ""})
            if not self._models.get(name):
                reason = self._reasons.get(name, "")
                rows.append({"name": name, "version": "", "state": "UNAVAILABLE", "reason": reason})
        return [row for row in rows if row["state"] == "READY"] if only_ready else rows

    # --- changes --------------------------------------------------------------------------------------------

    def load_all(self) -> None:
        """Find all models and load them. Blocking. Failures of models are logged; the others answer.

        Raises OSError or OptionError if models cannot be found, and the first model's error if none can be
        loaded.
        """
        first: Exception | None = None
        for name in self._find_sources():
            try:
                self.load(name)
            except Exception as error:  # noqa: BLE001 (logged, and shown by `index`)
                first = first or error
        if first is not None and not self._models:
            raise first

    async def load_async(self, name: str) -> None:
        """Load a model as `load` does, without blocking the event loop; changes run one after the other.

        Raises StateError if too many wait already (``serving.loads``), or the server ends
        (``serving.ending``).
        """
        await self._in_turn(self.load, name)

    async def unload_async(self, name: str) -> None:
        """Unload a model as `unload` does, without blocking the event loop."""
        await self._in_turn(self.unload, name)

    async def _in_turn(self, work: Callable[[str], None], name: str) -> None:
        if self._is_ending:
            raise self._ending_error()
        if self._is_changing + len(self._turns) >= self._max_loads:
            raise StateError(
                f"the number of models that load or wait to load is {self._max_loads}, the limit",
                code="serving.loads",
                hints=("retry later",),
            )
        loop = asyncio.get_running_loop()
        if self._is_changing:
            turn = loop.create_future()
            self._turns.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn in self._turns:
                    self._turns.remove(turn)
                elif not turn.cancelled():
                    self._next_turn()
                raise
        self._is_changing = True
        done: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            self._next_turn()
            if not done.done() and error is not None:
                done.set_exception(error)
            elif not done.done():
                done.set_result(None)

        def run() -> None:
            failed: BaseException | None = None
            try:
                work(name)
            except Exception as error:  # noqa: BLE001 (raised where it is awaited)
                failed = error
            # The event loop may have ended before the load.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, failed)

        # The load has a separate thread, for which the process does not wait when it exits.
        try:
            threading.Thread(target=run, name="load", daemon=True).start()
        except RuntimeError:
            self._next_turn()
            raise
        await done

    def _next_turn(self) -> None:
        self._is_changing = False
        while self._turns and not self._is_changing:
            turn = self._turns.popleft()
            # A waiting change may be cancelled already.
            if not turn.done():
                turn.set_result(None)
                self._is_changing = True

    def _ending_error(self) -> StateError:
        return StateError("the server is shutting down and loads no more models", code="serving.ending")

    def load(self, name: str) -> None:
        """Load a model, or load it again. Blocking; the old versions answer until the new ones are ready.

        Raises StateError if there is no such model, and OSError or QaicError if it cannot be loaded; a model
        that was loaded before stays.
        """
        with self._changes:
            sources = self._find_sources()
            source = sources.get(name)
            if source is None:
                raise StateError(
                    f"model {name[:200]!r} does not exist; the repository has {sorted(sources)}",
                    code="serving.unknown_model",
                )
            self._reasons.setdefault(name, "it is being loaded")
            made: dict[int, ServedModel] = {}
            try:
                settings = source.settings()
                for version, open_session in source.programs(settings).items():
                    made[version] = ServedModel(
                        settings, version, open_session(), self.metrics, self._schedule
                    )
            except Exception as error:
                for model in made.values():
                    model.retire(0)
                if not self._models.get(name):
                    self._reasons[name] = _text(error)
                # The traceback is omitted, because the error is in the model.
                _logger.error("model %r cannot be loaded: %s", name, _text(error))  # noqa: TRY400
                raise
            old, self._models[name] = self._models.get(name, {}), made
            self._reasons[name] = ""
        for model in made.values():
            _logger.info("model %r, version %d: ready", name, model.version)
        self._retire(old, self._drain_s)

    def unload(self, name: str) -> None:
        """Unload a model. Blocking: queued requests are answered first.

        Raises StateError if the model is not loaded.
        """
        with self._changes:
            self.find(name)
            old = self._models.pop(name)
            self._reasons[name] = "unloaded"
        self._retire(old, self._drain_s)
        _logger.info("model %r: unloaded", name)

    @staticmethod
    def _retire(models: dict[int, ServedModel], drain_s: float) -> None:
        for model in models.values():
            if not model.retire(drain_s):
                _logger.warning("model %r: requests were not answered in time", model.name)

    def begin_end(self) -> None:
        """Refuse waiting and new loads, and start requests without waiting for full batches."""
        self._is_ending = True
        while self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_exception(self._ending_error())
        for model in self.loaded():
            model.batcher.hurry()

    def close(self) -> None:
        """Unload all models, after the time for requests. Blocking, except for a load that still runs."""
        is_mine = self._changes.acquire(timeout=_LONGEST_CHANGE_S)
        models, self._models = self._models, {}
        if is_mine:
            self._changes.release()
        for versions in models.values():
            self._retire(versions, 0)

    def statistics(self, name: str = "", version: str = "") -> list[dict[str, Any]]:
        """Return statistics in the form of the protocol, of all models or one.

        Raises StateError if the model is not loaded.
        """
        if not name:
            models = self.loaded()
        elif version:
            models = [self.find(name, version)]
        else:
            self.find(name)
            models = [model for model in self.loaded() if model.name == name]
        return [model.statistics.as_dict() for model in models]


def _text(error: Exception) -> str:
    if isinstance(error, QaicError):
        return "; ".join((error.message, *error.hints))
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return f"{type(error).__name__}: {error}"


def refuse_overrides(parameters: object) -> None:
    """Refuse parameters of a load, which may contain a configuration or files.

    Raises OptionError if there are some.
    """
    if parameters:
        raise OptionError(
            "load parameters are not supported; the model is loaded from the repository",
            code="serving.unsupported",
        )
