"""``qaic.Session``: compile if needed, load when needed, run."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qaic import _core
from qaic.errors import DeviceTimeoutError, OptionConflictError, OptionError
from qaic.model_path import find_model
from qaic.options import resolve
from qaic.options.keywords import SessionKeywords
from qaic.runtime.futures import Collector
from qaic.runtime.imap import MapProgress, imap
from qaic.runtime.latency import CallProfile
from qaic.runtime.metrics import Measurements
from qaic.runtime.shapes import ShapeDict, coerce

if TYPE_CHECKING:
    # Importing them builds the table of options, which the first session needs and `import qaic` does not.
    from qaic.options import ResolvedOptions, RuntimeOptions

_logger = logging.getLogger(__name__)

_DEFAULT_BENCHMARK_INFERENCES = 40
_LARGEST_COUNT = 2**64 - 1


class Session(Measurements):
    """A compiled model that can be run.

    Parameters
    ----------
    model_path
        An ONNX model, which is compiled now; or a container file, a directory that holds ``programqpc.bin``,
        or a glob that matches exactly one file.
    backend
        ``"aic"``; the only value, kept because documented calls pass it.
    options_path
        YAML file with the same keys as ``options``; explicit keywords win.
    **options
        Run-time and compile options; ``docs/reference/options.md`` lists them. Compile options are ignored,
        with one warning, for a compiled container.

    Raises
    ------
    FileNotFoundError
        ``model_path`` or ``options_path`` does not exist.
    qaic.errors.UnknownOptionError
        An option does not exist; the message names the nearest one.
    qaic.errors.CompileError
        The model cannot be compiled.
    qaic.errors.QpcError
        The container is damaged.

    Notes
    -----
    Construction loads nothing on the device; the first ``run``, ``run_benchmark`` or ``setup`` does. All
    methods may be called from any number of threads. Blocking calls release the GIL and answer Ctrl-C.

    Examples
    --------
    >>> import numpy as np, qaic
    >>> with qaic.Session("model.onnx") as session:  # doctest: +SKIP
    ...     out = session.run({"x": np.zeros((1, 16), np.float32)})
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        backend: str = "aic",
        options_path: str | os.PathLike[str] | None = None,
        **options: Unpack[SessionKeywords],
    ) -> None:
        model = find_model(model_path)
        resolved = resolve(
            {"backend": backend, **options}, options_path=options_path, model_is_container=model.is_container
        )
        path = model.path if model.is_container else _compile(model.path, resolved)
        super().__init__(_core.Qpc(path), resolved.runtime)
        inputs, outputs = self._qpc.tensors()
        self._inputs = ShapeDict.of(inputs)
        self._outputs = ShapeDict.of(outputs)
        self._submit_limit = _submit_limit(self._runtime)
        self._names_devices = "dev_id" in resolved.as_given
        self._collector: Collector | None = None
        self._warm = False
        _sessions.add(self)

    # --- what the model looks like --------------------------------------------------------------------------

    @property
    def model_input_shape_dict(self) -> ShapeDict:
        """Name -> ``(shape, dtype)`` of the inputs, in order. May also be called."""
        return self._inputs

    @property
    def model_output_shape_dict(self) -> ShapeDict:
        """Name -> ``(shape, dtype)`` of the outputs, in order. May also be called."""
        return self._outputs

    # --- life cycle -----------------------------------------------------------------------------------------

    def setup(self) -> None:
        """Load and activate the program now; a no-op when it is.

        Raises
        ------
        qaic.errors.DeviceBusyError
            Fewer cores are free than ``num_activations`` x the program's cores; the message names both.
        qaic.errors.DeviceNotFoundError
            ``dev_id`` does not exist, or the program was partitioned for more devices than there are.
        qaic.errors.DeviceError
            The container was built for another target, or the engine is missing or too old.
        """
        self._ensure_loaded()

    def reset(self, *, timeout: float | None = None) -> None:
        """Release the device: cores, exec objects, weights, retained state. The next ``run`` loads again.

        Inferences under way, those of futures too, end normally; their cores are free when the last of them
        has ended.

        Blocking until the device has given everything back; a card whose cores restart takes seconds. After
        Ctrl-C, and after ``timeout``, that goes on without the caller.

        Parameters
        ----------
        timeout
            Seconds; ``None``: a minute.

        Raises
        ------
        qaic.errors.DeviceTimeoutError
            ``timeout`` passed.
        """
        self._unload(timeout)

    def _unload(self, timeout: float | None = None) -> None:
        with self._lock:
            loaded, self._loaded = self._loaded, None
            self._warm = False
            if self._collector is not None:
                self._collector.leave_when_idle()
        if loaded is not None:
            teardown = loaded.teardown()
            # It begins with the last reference, which may be this one.
            del loaded
            teardown.wait(timeout)

    def __enter__(self) -> Self:
        """Return the session; leaving the block resets it."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Reset the session."""
        try:
            self.reset()
        except DeviceTimeoutError as error:
            # What went wrong in the block matters more.
            if exc is None:
                raise
            _logger.warning("%s", error)

    def _ensure_loaded(self) -> _core.InferenceSet:
        loaded = self._loaded
        if loaded is not None:
            return loaded
        with self._lock:
            if self._loaded is None:
                options = self._runtime
                loaded = _core.InferenceSet(
                    _core.Context(),
                    self._qpc,
                    self._device_ids(),
                    options.set_size,
                    options.num_activations,
                    coerce,
                    submit_timeout=options.submit_timeout,
                    submit_num_retries=options.submit_num_retries,
                    threads_per_queue=options.threads_per_queue,
                    share_group=options.oversubscription_name,
                    allow_hw_mismatch=options.allow_hw_mismatch,
                )
                for profile in self._profiles:
                    profile.add(loaded)
                self._loaded = loaded
            return self._loaded

    def _device_ids(self) -> list[int] | None:
        """Devices that the user named; ``None`` leaves the choice to the runtime."""
        named = self._runtime.dev_id
        if not self._names_devices:
            return None
        return [named] if isinstance(named, int) else list(named)

    # --- inference ------------------------------------------------------------------------------------------

    def run(
        self,
        input_dict: Mapping[str, ArrayLike],
        *,
        out: dict[str, NDArray[Any]] | None = None,
        output_names: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Run one inference and return its outputs.

        Blocking: loads on first use, waits while all ``num_activations * set_size`` exec objects are busy,
        then runs. The GIL is released; any number of threads may call.

        Parameters
        ----------
        input_dict
            Name -> array. An array of the program's dtype and shape is used in place; others are converted
            (``same_kind`` casts, integers in range, same number of elements). Where the program has several
            combinations of shapes, the arrays decide which. An input whose state the device keeps may be left
            out.
        out
            Name -> array that receives that output: exact shape and dtype, C-contiguous, writable. The result
            holds the same array objects.
        output_names
            Return only these outputs. Without it, all but the next values (``*_RetainedState``) of inputs
            that were left out.
        timeout
            Seconds for the whole call; ``None``: the options ``submit_timeout`` and ``submit_num_retries``
            decide, and without them there is no limit.

        Returns
        -------
        dict
            Name -> array in binding order. Arrays are fresh, writable and C-contiguous; no later run changes
            them.

        Raises
        ------
        qaic.errors.MissingInputError
            Inputs are missing; all are listed.
        qaic.errors.InputShapeError
            An input has the wrong number of elements, or the program has no such combination of shapes.
        qaic.errors.InputTypeError
            An input's type does not convert.
        qaic.errors.InputError
            A name is unknown, an integer does not fit, or an ``out`` array cannot be used.
        qaic.errors.DeviceTimeoutError
            ``timeout`` passed.
        qaic.errors.InferenceError
            The device failed.
        """
        if timeout is None:
            timeout = self._submit_limit
        if self._runtime.enable_metrics or self._runtime.enable_profiling:
            return self._run_recorded(input_dict, out, output_names, timeout)
        # No local variable for the loaded program, here and below: a kept exception keeps this frame,
        # and that must not keep the cores after reset().
        return (self._loaded or self._ensure_loaded()).run(input_dict, out, output_names, timeout)

    def _run_recorded(
        self,
        input_dict: Mapping[str, ArrayLike],
        out: dict[str, NDArray[Any]] | None,
        output_names: Sequence[str] | None,
        timeout: float | None,
    ) -> dict[str, NDArray[Any]]:
        self._ensure_loaded()
        started = time.perf_counter()
        if self._runtime.enable_profiling:
            result, profile = CallProfile.record(
                lambda: (self._loaded or self._ensure_loaded()).run(input_dict, out, output_names, timeout)
            )
            self.profiling_results.append(profile)
        else:
            result = (self._loaded or self._ensure_loaded()).run(input_dict, out, output_names, timeout)
        latency_s = time.perf_counter() - started
        with self._lock:
            warm_up, self._warm = not self._warm, True
        self._latencies.add(latency_s, warm_up=warm_up)
        return result

    def submit(
        self, input_dict: Mapping[str, ArrayLike], *, timeout: float | None = None
    ) -> Future[dict[str, NDArray[Any]]]:
        """Start one inference and return its future.

        Blocking only while all exec objects are busy. Inputs are copied, so their arrays may be used again at
        once. A short inference may have ended when this returns, and so has its future. Other futures end on
        a thread of the session, which also runs their callbacks; ``cancel`` succeeds until the device has the
        inference.

        Parameters
        ----------
        input_dict
            As for :meth:`run`.
        timeout
            Seconds from now to the end of the inference, which is then cancelled; ``None``: no limit but the
            one of ``submit_timeout`` and ``submit_num_retries``, which counts from when the device begins.

        Returns
        -------
        concurrent.futures.Future
            Of the outputs, as :meth:`run` returns them; or of the exception.

        Raises
        ------
        qaic.errors.InputError
            The inputs cannot be used; as for :meth:`run`.
        qaic.errors.DeviceTimeoutError
            No exec object was free within ``timeout``.
        """
        inference = self._ensure_loaded().prepare(input_dict, timeout)
        return self._ensure_collector().submit(inference, wait=True)

    async def run_async(
        self, input_dict: Mapping[str, ArrayLike], *, timeout: float | None = None
    ) -> dict[str, NDArray[Any]]:
        """Run one inference without ever blocking the event loop, and return its outputs.

        Loading on first use and waiting for a free exec object happen elsewhere. When the task is cancelled,
        so is the inference, also on the device. Parameters and errors are those of :meth:`submit`.
        """
        import asyncio

        if self._loaded is None:
            await asyncio.to_thread(self._ensure_loaded)
        inference = self._ensure_loaded().prepare(input_dict, timeout)
        future = self._ensure_collector().submit(inference, wait=False)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.abandon()
            raise

    def map(
        self,
        iterable: Iterable[Mapping[str, ArrayLike]],
        *,
        in_flight: int | None = None,
        timeout: float | None = None,
        progress: bool = False,
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """Run an inference for each of many inputs and yield the results in their order.

        The inputs are taken as they are needed: before the first result as many as may be in flight, then one
        for each result. They are copied, so their arrays may be used again for the next ones.

        Parameters
        ----------
        iterable
            Inputs, each as for :meth:`run`.
        in_flight
            Inferences that are started and not yet yielded, at most; default
            ``num_activations * set_size``. With 1 they run one after the other.
        timeout
            Seconds that one inference may take from when its input was taken.
        progress
            Show counts and rate on standard error when it is a terminal.

        Yields
        ------
        dict
            Outputs as :meth:`run` returns them.

        Raises
        ------
        qaic.errors.OptionError
            ``in_flight`` is not a positive number; at once.

        Notes
        -----
        An exception - of an inference, of an input that cannot be used, of ``iterable`` itself - is raised in
        its turn, after the results before it, and ends the map. Leaving early cancels what is under way.
        """
        options = self._runtime
        if in_flight is None:
            in_flight = options.num_activations * options.set_size
        if isinstance(in_flight, bool) or not isinstance(in_flight, int) or in_flight < 1:
            raise OptionError(
                f"in_flight is {in_flight!r}; a number of inferences, 1 or more, is expected",
                code="map.in_flight",
            )
        return imap(
            lambda inputs: self._ensure_loaded().prepare(inputs, timeout),
            iterable,
            in_flight,
            MapProgress(iterable, wanted=progress),
            lambda inference: self._ensure_collector().detach(inference),
        )

    # --- state on the device --------------------------------------------------------------------------------

    def read_state(self, name: str, *, sequence: int | None = None) -> NDArray[Any]:
        """Copy a state out of the device, for a program compiled with ``split_retained_state_io``.

        Blocking: loads on first use, then waits for the inference that runs.

        Parameters
        ----------
        name
            Input whose value the device keeps.
        sequence
            Index along the first dimension; ``None``: the whole state.

        Returns
        -------
        numpy.ndarray
            A new array of the input's dtype (float16 where the device has MXINT8 blocks), without the first
            dimension if ``sequence`` was given.

        Raises
        ------
        qaic.errors.StateError
            The program was compiled without the option.
        qaic.errors.InputError
            The device keeps no state of this name, or it has no such sequence.
        """
        return (self._loaded or self._ensure_loaded()).read_state(name, sequence)

    def write_state(self, name: str, value: ArrayLike, *, sequence: int | None = None) -> None:
        """Replace a state on the device; the next inference reads it. As :meth:`read_state`.

        Parameters
        ----------
        name, sequence
            As for :meth:`read_state`.
        value
            Converted as an input of :meth:`run` is; its elements fill the state, or the part of the sequence.

        Raises
        ------
        qaic.errors.InputShapeError, qaic.errors.InputTypeError
            The value does not fit.
        """
        (self._loaded or self._ensure_loaded()).write_state(name, value, sequence)

    def _ensure_collector(self) -> Collector:
        collector = self._collector
        if collector is None:
            with self._lock:
                collector = self._collector = self._collector or Collector()
        return collector

    def run_benchmark(
        self,
        num_inferences: int | None = None,
        inf_time: float | None = None,
        input_dict: Mapping[str, ArrayLike] | None = None,
    ) -> tuple[int, float, int, int]:
        """Run many inferences, as many at a time as the session may, without Python work between them.

        Parameters
        ----------
        num_inferences
            How many; default 40.
        inf_time
            How long instead, in seconds.
        input_dict
            Inputs of every inference; default random data.

        Returns
        -------
        tuple
            ``(inf_completed, inf_rate, inf_time, batch_size)``: inferences that ended, inferences per second
            (without the batch factor), microseconds they took together, and the batch the model was compiled
            for.

        Raises
        ------
        qaic.errors.OptionConflictError
            Both ``num_inferences`` and ``inf_time`` were given.
        """
        if num_inferences is not None and inf_time is not None:
            raise OptionConflictError(
                "num_inferences and inf_time exclude each other", code="benchmark.conflict"
            )
        if inf_time is None and num_inferences is None:
            num_inferences = _DEFAULT_BENCHMARK_INFERENCES
        if num_inferences is not None and not 1 <= num_inferences <= _LARGEST_COUNT:
            raise OptionError(
                f"num_inferences is {num_inferences}; 1 to {_LARGEST_COUNT} is expected",
                code="benchmark.count",
            )
        if inf_time is not None and not 0 < inf_time < math.inf:
            raise OptionError(
                f"inf_time is {inf_time}; a positive, finite number of seconds is expected",
                code="benchmark.time",
            )
        inputs: Mapping[str, ArrayLike]
        if input_dict is None:
            inputs = _random_inputs(self._inputs, self._ensure_loaded().input_shapes()[0])
        else:
            inputs = input_dict
        completed, elapsed_ns = self._ensure_loaded().run_benchmark(inputs, num_inferences, inf_time)
        rate = completed / (elapsed_ns / 1e9) if elapsed_ns else 0.0
        return completed, rate, round(elapsed_ns / 1000), self._qpc.batch_size

    # --- options that may change ----------------------------------------------------------------------------

    def backend_options(self) -> dict[str, object]:
        """Run-time options and their present values."""
        return self._runtime.backend_options()

    def update_backend_options(self, **options: object) -> None:
        """Change run-time options. A loaded program is loaded again, with the new values, at the next use.

        Inferences under way end normally, as after :meth:`reset`.

        Raises
        ------
        qaic.errors.OptionError
            A key is unknown or is a compile option; the message lists the valid keys.
        """
        from qaic.options.resolution import parse_updates

        with self._lock:
            changes = parse_updates(options)
            # Their names are fields and their values come from codecs, which a type checker cannot see.
            updated = replace(self._runtime, **changes)  # type: ignore[arg-type]
            names_devices = self._names_devices or "dev_id" in changes
            if (updated, names_devices) != (self._runtime, self._names_devices):
                self._runtime, self._names_devices = updated, names_devices
                self._submit_limit = _submit_limit(updated)
                is_changed = True
            else:
                is_changed = False
        if is_changed:
            self._unload()


#: every session of the process
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _unload_all() -> None:
    """Let every session load anew in a forked process, which has none of the threads of its parent."""
    for session in list(_sessions):
        # A thread of the parent may have held it.
        session._lock = threading.RLock()  # noqa: SLF001 (a function of this class)
        session._profiles = []  # noqa: SLF001
        session.reset()


os.register_at_fork(after_in_child=_unload_all)


def _submit_limit(options: RuntimeOptions) -> float | None:
    """Seconds one ``run`` may take: a wait of ``submit_timeout``, and as many again as there are retries."""
    if not options.submit_timeout:
        return None
    return float(options.submit_timeout * (1 + options.submit_num_retries))


def _compile(path: Path, options: ResolvedOptions) -> Path:
    from qaic.compiler import compile_resolved

    return compile_resolved(path, options)


def _random_inputs(inputs: ShapeDict, shapes: Sequence[Sequence[int]]) -> dict[str, NDArray[Any]]:
    """Make data for a benchmark: floats in [0, 1); integers 0 or 1, valid indices of almost any model."""
    generator = np.random.default_rng(0)
    return {
        name: (generator.random(shape) if dtype.kind == "f" else generator.integers(0, 2, shape)).astype(
            dtype
        )
        for (name, (_, dtype)), shape in zip(inputs.items(), shapes, strict=True)
    }
