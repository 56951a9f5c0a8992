"""``qaic.Session``: compiles a model if needed, loads the program at the first use, and runs inferences."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from numpy.typing import ArrayLike, NDArray

from qaic import _core
from qaic.errors import DeviceTimeoutError, InputError, OptionError, StateError
from qaic.options.signature import with_options
from qaic.runtime import forked
from qaic.runtime.benchmark import BenchmarkResult, checked_count, random_inputs
from qaic.runtime.imap import MapProgress, imap
from qaic.runtime.latency import CallProfile
from qaic.runtime.load_lock import LoadLock
from qaic.runtime.metrics import Measurements
from qaic.runtime.program_view import opened
from qaic.runtime.shapes import coerce, given_outputs, outputs_memory
from qaic.support.lazy_module import LazyModule

if TYPE_CHECKING:
    import dataclasses
    from concurrent import futures

    import onnx

    from qaic import qpc as containers
    from qaic.options import keywords
    from qaic.runtime import futures as completion
else:
    # These modules are needed only later, and take several times as long to import as all others.
    dataclasses = LazyModule("dataclasses")
    futures, onnx = LazyModule("concurrent.futures"), LazyModule("onnx")
    containers, keywords = LazyModule("qaic.qpc"), LazyModule("qaic.options.keywords")
    completion = LazyModule("qaic.runtime.futures")

_NO_INPUTS: Mapping[str, Any] = MappingProxyType({})
#: codes of errors about inputs and outputs that are accepted in another form
_OTHER_FORMS = frozenset({"input.not_a_dict", "output.array"})


@with_options("SessionKeywords")
class Session(Measurements):
    """A session that runs inferences of a compiled model.

    Parameters
    ----------
    model_path
        An ONNX model, which the constructor compiles: a file, bytes, or an ``onnx.ModelProto``. Or a
        container: a file, a directory that contains ``programqpc.bin``, a glob that matches exactly one file,
        bytes, or a :class:`qaic.Qpc`.
    backend
        ``"aic"`` or ``"qaic"``, which are equivalent.
    options_path
        YAML file with the same keys as ``options``; keywords take precedence.
    **options
        Run-time and compile options; ``docs/reference/options.md`` lists them. Compile options are ignored,
        with one warning, for a compiled container.

    Attributes
    ----------
    inputs, outputs
        Name, shape and dtype of each tensor.
    path, qpc
        File of the container, and the opened container.
    options, warnings
        Effective options, and warnings about options, model and container.

    Raises
    ------
    FileNotFoundError
        ``model_path`` or ``options_path`` does not exist.
    qaic.errors.InputTypeError
        ``model_path`` has another type.
    qaic.errors.UnknownOptionError
        An option does not exist; the message names the nearest one.
    qaic.errors.CompileError
        The model cannot be compiled.
    qaic.errors.QpcError
        The container is damaged.

    Notes
    -----
    The constructor does not use the device; the first ``run``, ``run_benchmark`` or ``setup`` loads the
    program. All methods are thread-safe. Blocking calls release the GIL and can be interrupted with Ctrl-C.
    A session is pickled as the path of its container (or its bytes if there is no file) and its run-time
    options.

    Examples
    --------
    >>> import numpy as np, qaic
    >>> session = qaic.Session("model.onnx", num_activations=2)
    >>> print(*session.inputs)
    x float32[1, 16]
    >>> x = np.zeros((1, 16), np.float32)
    >>> outputs = session.run({"x": x})
    >>> outputs = session.run(x=x)
    >>> outputs = session.run(x)
    >>> outputs["y"].shape
    (1, 16)
    >>> session.close()
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str] | bytes | containers.Qpc | onnx.ModelProto,
        *,
        backend: str = "aic",
        options_path: str | os.PathLike[str] | None = None,
        **options: Unpack[keywords.SessionKeywords],
    ) -> None:
        # Rules for combinations of options are imported only if there are options.
        given = options if backend == "aic" else {"backend": backend, **options}
        super().__init__(opened(model_path, given, options_path))
        self._run_limit_s = self._runtime.run_limit_s()
        self._records_latencies = self._runtime.records_latencies()
        self._is_closed = False
        self._collector: completion.Collector | None = None
        self._warm = False
        forked.sessions.add(self)

    # --- life cycle -----------------------------------------------------------------------------------------

    def setup(self) -> None:
        """Load and activate the program now. Does nothing if it is active.

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

        Inferences in flight end normally; the last one releases the cores. Loads that need them wait for it.

        Without these, blocks until the device has released everything, which takes seconds if the cores of a
        card restart. After Ctrl-C and after ``timeout``, the release continues in the background.

        Parameters
        ----------
        timeout
            Seconds; ``None``: one minute.

        Raises
        ------
        qaic.errors.DeviceTimeoutError
            ``timeout`` passed.
        """
        self._unload(timeout)

    def close(self) -> None:
        """Release the device like :meth:`reset`, permanently: later calls that need the device are refused.

        Properties of the program and metrics remain available. A second call does nothing.
        """
        self._is_closed = True
        self._unload()

    def _unload(self, timeout: float | None = None) -> None:
        # A load in progress must end first, because it would take the device afterwards.
        with self._loads.held(60.0 if timeout is None else timeout) as left, self._lock:
            loaded, self._loaded = self._loaded, None
            self._warm = False
            if self._collector is not None:
                self._collector.leave_when_idle()
        if loaded is not None:
            teardown = loaded.teardown()
            # The release starts with the deletion of the last reference, which may be this one.
            del loaded
            teardown.wait(left)

    def _after_fork_in_child(self) -> None:
        """Let the session load again."""
        # A thread of the parent may have held the lock.
        self._lock = threading.RLock()
        self._loads = LoadLock()
        self._profiles = []
        self.reset()

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
            # An exception of the block is more important.
            if exc is None:
                raise
            import logging

            logging.getLogger(__name__).warning("%s", error)

    async def __aenter__(self) -> Self:
        """Return the session; leaving the block resets it without blocking the event loop."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Reset the session."""
        import asyncio

        await asyncio.to_thread(self.__exit__, exc_type, exc, traceback)

    def _state(self) -> str:
        options = self._runtime
        state = "closed" if self._is_closed else "loaded" if self._loaded is not None else "not loaded"
        in_flight = options.num_activations * options.set_size
        return f"{state}, {in_flight} inference{'' if in_flight == 1 else 's'} at a time"

    def _ensure_loaded(self, timeout: float | None = None) -> _core.InferenceSet:
        loaded = self._loaded
        if loaded is not None:
            return loaded
        with self._loads.held(timeout) as left:
            if self._is_closed:
                raise StateError(
                    "the session is closed",
                    code="session.closed",
                    hints=("create a new session; reset() releases a device and keeps the session",),
                )
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
                    timeout=left,
                )
                with self._lock:
                    for profile in self._profiles:
                        profile.add(loaded)
                    self._loaded = loaded
            return self._loaded

    # --- inference ------------------------------------------------------------------------------------------

    def run(
        self,
        input_dict: Mapping[str, ArrayLike] | ArrayLike = _NO_INPUTS,
        *,
        out: dict[str, Any] | None = None,
        output_names: Sequence[str] | None = None,
        timeout: float | None = None,
        **inputs: ArrayLike,
    ) -> dict[str, NDArray[Any]]:
        """Run one inference and return its outputs.

        Blocks: loads the program at the first use, waits while all ``num_activations * set_size`` exec
        objects are busy, then runs. Releases the GIL; thread-safe.

        Parameters
        ----------
        input_dict
            Name -> array, or the array itself if the program has one input. An array of the program's dtype
            and shape is used in place; others are converted (``same_kind`` casts, integers in range, same
            number of elements). Arrays of other libraries in host memory are accepted through DLPack. The
            shapes of the arrays select the specialization. Inputs that are retained state can be left out.
        out
            Name -> array that receives that output: exact shape and dtype, C-contiguous, writable by numpy
            (by DLPack alone from numpy 2.3 on). The result holds the same array objects.
        output_names
            Return only these outputs. Default: all, without the next values (``*_RetainedState``) of inputs
            that were left out.
        timeout
            Limit of the inference in seconds, and also of the load if this call loads the program. ``None``:
            the limit of ``submit_timeout`` and ``submit_num_retries``, if they are set.
        **inputs
            Inputs by name, unless the name is a parameter of this method.

        Returns
        -------
        dict
            Name -> array in binding order. Arrays are new, writable and C-contiguous; later runs do not
            change them.

        Raises
        ------
        qaic.errors.MissingInputError
            Inputs are missing; all are listed.
        qaic.errors.InputShapeError
            An input has the wrong number of elements, or no specialization has these shapes.
        qaic.errors.InputTypeError
            An input's type does not convert.
        qaic.errors.InputError
            A name is unknown, an integer does not fit, or an ``out`` array cannot be used.
        qaic.errors.DeviceTimeoutError
            ``timeout`` passed.
        qaic.errors.InferenceError
            The device failed.
        """
        if inputs:
            input_dict = self._joined(input_dict, inputs)
        if self._loaded is None:
            self._ensure_loaded(timeout)
        if timeout is None:
            timeout = self._run_limit_s
        if self._records_latencies:
            named, memory = self._named(input_dict), outputs_memory(out)
            return given_outputs(self._run_recorded(named, memory, output_names, timeout), out)
        # The loaded program has no local variable here and below. A stored exception keeps this frame, and
        # the frame must not keep the cores after reset().
        try:
            return (self._loaded or self._ensure_loaded()).run(input_dict, out, output_names, timeout)
        except InputError as error:
            # Arrays by name are the common form. Other forms are refused before the inference starts, so the
            # call is repeated with converted arguments.
            named, memory = self._named(input_dict), outputs_memory(out)
            if error.code not in _OTHER_FORMS or (named is input_dict and memory is out):
                raise
        result = (self._loaded or self._ensure_loaded()).run(named, memory, output_names, timeout)
        return given_outputs(result, out)

    def _run_recorded(
        self,
        input_dict: Mapping[str, ArrayLike],
        out: dict[str, Any] | None,
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
        self, input_dict: Mapping[str, ArrayLike] | ArrayLike, *, timeout: float | None = None
    ) -> futures.Future[dict[str, NDArray[Any]]]:
        """Start one inference and return its future.

        Blocks only while all exec objects are busy. Inputs are copied, so their arrays can be reused. A short
        inference can be complete when this returns. Other futures complete on a thread of the session, which
        also runs their callbacks. ``cancel`` succeeds until the device starts the inference.

        Parameters
        ----------
        input_dict
            As for :meth:`run`.
        timeout
            Seconds until the end of the inference; it is cancelled if it takes longer. ``None``: the limit of
            ``submit_timeout`` and ``submit_num_retries``, counted from the start on the device.

        Returns
        -------
        concurrent.futures.Future
            Future of the outputs of :meth:`run`, or of the exception.

        Raises
        ------
        qaic.errors.InputError
            The inputs cannot be used; as for :meth:`run`.
        qaic.errors.DeviceTimeoutError
            No exec object was free within ``timeout``.
        """
        inference = self._ensure_loaded(timeout).prepare(self._named(input_dict), timeout)
        return self._ensure_collector().submit(inference, wait=True)

    async def run_async(
        self, input_dict: Mapping[str, ArrayLike] | ArrayLike, *, timeout: float | None = None
    ) -> dict[str, NDArray[Any]]:
        """Run one inference without blocking the event loop, and return its outputs.

        Other threads load the program and wait for a free exec object. Cancelling the task also cancels the
        inference on the device. Parameters and errors are those of :meth:`submit`.
        """
        import asyncio

        if self._loaded is None:
            await asyncio.to_thread(self._ensure_loaded, timeout)
        inference = self._ensure_loaded().prepare(self._named(input_dict), timeout)
        future = self._ensure_collector().submit(inference, wait=False)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.abandon()
            raise

    def map(
        self,
        iterable: Iterable[Mapping[str, ArrayLike] | ArrayLike],
        *,
        in_flight: int | None = None,
        timeout: float | None = None,
        progress: bool = False,
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """Run an inference for each input and yield the results in the same order.

        Inputs are read as needed: ``in_flight`` inputs before the first result, then one for each result.
        They are copied, so their arrays can be reused.

        Parameters
        ----------
        iterable
            Inputs, each as for :meth:`run`.
        in_flight
            Largest number of inferences that are started and not yet yielded; default ``num_activations *
            set_size``. With 1 they run one after the other.
        timeout
            Limit of one inference in seconds, from the time when its input is taken.
        progress
            Show counts and rate on standard error when it is a terminal.

        Yields
        ------
        dict
            Outputs as :meth:`run` returns them.

        Raises
        ------
        qaic.errors.OptionError
            ``in_flight`` is not a positive number; raised immediately.

        Notes
        -----
        If an inference fails, an input is invalid, or ``iterable`` raises, the map yields the results before
        this item, raises the exception, and ends. A note in the exception, and ``context["item"]`` of errors
        of this package, contain the number of the item. Leaving the loop early cancels the remaining
        inferences.
        """
        options = self._runtime
        if in_flight is None:
            in_flight = options.num_activations * options.set_size
        if isinstance(in_flight, bool) or not isinstance(in_flight, int) or in_flight < 1:
            raise OptionError(
                f"in_flight is {in_flight!r}; a number of inferences of at least 1 is expected",
                code="map.in_flight",
            )
        return imap(
            lambda inputs: self._ensure_loaded(timeout).prepare(self._named(inputs), timeout),
            iterable,
            in_flight,
            MapProgress(iterable, wanted=progress),
            lambda inference: self._ensure_collector().detach(inference),
        )

    # --- state on the device --------------------------------------------------------------------------------

    def read_state(self, name: str, *, sequence: int | None = None) -> NDArray[Any]:
        """Copy a state from the device, for a program compiled with ``split_retained_state_io``.

        Blocks: loads the program at the first use, then waits for a running inference.

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
        """Replace a state on the device; the next inference reads it. Blocks as :meth:`read_state`.

        Parameters
        ----------
        name, sequence
            As for :meth:`read_state`.
        value
            New value, converted like an input of :meth:`run`; it has the size of the state, or of one
            sequence.

        Raises
        ------
        qaic.errors.InputShapeError, qaic.errors.InputTypeError
            The value does not fit.
        """
        (self._loaded or self._ensure_loaded()).write_state(name, value, sequence)

    def _ensure_collector(self) -> completion.Collector:
        collector = self._collector
        if collector is None:
            # The next line may import a module, so it does not hold the lock.
            made = completion.Collector
            with self._lock:
                collector = self._collector = self._collector or made()
        return collector

    def run_benchmark(
        self,
        num_inferences: int | None = None,
        inf_time: float | None = None,
        input_dict: Mapping[str, ArrayLike] | ArrayLike | None = None,
    ) -> BenchmarkResult:
        """Run many inferences, as many at a time as the session allows, without Python code between them.

        Parameters
        ----------
        num_inferences
            Number of inferences; default 40.
        inf_time
            Duration in seconds, instead of a number; at least one inference runs.
        input_dict
            Inputs of every inference, as for :meth:`run`; default random data.

        Returns
        -------
        BenchmarkResult
            A named tuple ``(inf_completed, inf_rate, inf_time, batch_size)``: number of inferences,
            inferences per second (a batch counts once), duration of the run in microseconds, and batch size
            of the program.

        Raises
        ------
        qaic.errors.OptionConflictError
            Both ``num_inferences`` and ``inf_time`` were given.
        """
        num_inferences = checked_count(num_inferences, inf_time)
        inputs: Mapping[str, ArrayLike]
        if input_dict is None:
            inputs = random_inputs(self._inputs, self.qpc.network_descriptor)
        else:
            inputs = self._named(input_dict)
        completed, elapsed_ns = self._ensure_loaded().run_benchmark(inputs, num_inferences, inf_time)
        rate = completed / (elapsed_ns / 1e9) if elapsed_ns else 0.0
        return BenchmarkResult(completed, rate, round(elapsed_ns / 1000), self._qpc.batch_size)

    # --- options that may change ----------------------------------------------------------------------------

    def update_backend_options(self, **options: object) -> None:
        """Change run-time options. A loaded program is loaded again, with the new values, at the next use.

        Inferences in flight end normally, as after :meth:`reset`.

        Raises
        ------
        qaic.errors.OptionError
            A key is unknown or is a compile option; the message lists the valid keys.
        """
        from qaic.options.resolution import parse_updates

        with self._lock:
            changes = parse_updates(options)
            # A type checker cannot verify that the names are fields and that codecs created the values.
            updated = dataclasses.replace(self._runtime, **changes)  # type: ignore[arg-type]
            names_devices = self._names_devices or "dev_id" in changes
            if (updated, names_devices) != (self._runtime, self._names_devices):
                self._runtime, self._names_devices = updated, names_devices
                self._run_limit_s = updated.run_limit_s()
                self._records_latencies = updated.records_latencies()
                is_changed = True
            else:
                is_changed = False
        if is_changed:
            self._unload()
