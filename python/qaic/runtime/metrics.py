"""Metrics that a session records about its own inferences.

The module contains the base class of :class:`qaic.Session` that records them.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qaic import _core
from qaic.errors import StateError
from qaic.runtime.latency import CallProfile, LatencyRecord, Metrics, format_summary
from qaic.runtime.load_lock import LoadLock
from qaic.runtime.program_view import Opened, ProgramView
from qaic.support.lazy_module import LazyModule

if TYPE_CHECKING:
    import pathlib

    from qaic import profile as profiles
else:
    pathlib, profiles = LazyModule("pathlib"), LazyModule("qaic.profile")


class Measurements(ProgramView):
    """Metrics and call profiles of a session."""

    def __init__(self, program: Opened) -> None:
        super().__init__(program)
        # Guards the state of setup, reset and update_backend_options; never held while an inference
        # runs. Reentrant, because the handler of a signal that arrives during a load may reset the session.
        self._lock = threading.RLock()
        # Held while the program is loaded. A thread that needs both locks takes this one first.
        self._loads = LoadLock()
        self._loaded: _core.InferenceSet | None = None
        self._latencies = LatencyRecord()
        self.profiling_results: list[CallProfile] = []
        # Active profiles, and the latencies of the last profile.
        self._profiles: list[profiles.Profile] = []
        self._profiled_s: NDArray[np.float64] | None = None

    @contextmanager
    def profile(
        self, *, device: bool | None = None, first: int = 0, samples: int | None = None, sampling: int = 1
    ) -> "Iterator[profiles.Profile]":
        """Record the inferences of a ``with`` block: times on the host and measurements of the device.

        The block records every inference that starts and ends inside it, from any thread and method: ``run``,
        ``submit``, ``map``, ``run_async``, ``run_benchmark``. Each of several simultaneous blocks has its own
        record. Inferences outside all blocks have no overhead.

        Parameters
        ----------
        device
            True to keep the stats buffers of the device; ``None``: if the program was compiled with an
            explicit stats level. From level 70 on, a buffer contains the times of operators, and measuring
            them makes inferences slower.
        first
            Number of inferences to skip at the start of the block.
        samples
            Largest number of recorded inferences of each activation; ``None``: as many as fit.
        sampling
            Record one in 1, 2, 4, 8 or 16 inferences of each activation.

        Yields
        ------
        Profile
            Contains the record after the end of the block, even if it ended with an exception.

        Raises
        ------
        qaic.errors.OptionError
            A number is out of range.
        qaic.errors.StateError
            ``device=True``, and the program has no stats buffer.

        Examples
        --------
        >>> import numpy as np, qaic
        >>> session = qaic.Session("model.onnx", stats_level=70)
        >>> with session.profile() as profile:
        ...     for _ in range(10):
        ...         outputs = session.run({"x": np.zeros((1, 16), np.float32)})
        >>> len(profile.samples), len(profile.device)
        (10, 10)
        >>> profile.trace("trace.json")  # for chrome://tracing or Perfetto
        """
        from qaic.profile import Profile

        profile = Profile(self._qpc, device=device, first=first, samples=samples, sampling=sampling)
        with self._lock:
            profile.begin()
            if self._loaded is not None:
                profile.add(self._loaded)
            self._profiles.append(profile)
        try:
            yield profile
        finally:
            with self._lock:
                # A forked child has no profiles of its parent.
                if profile in self._profiles:
                    self._profiles.remove(profile)
                    profile.end()
                    if len(profile):
                        self._profiled_s = profile.latencies_s

    def get_metrics(self) -> Metrics:
        """Return statistics of the latencies of ``run`` so far, in seconds.

        Returns
        -------
        Metrics
            A dictionary whose keys are also attributes: ``num_of_inferences``, ``min_latency``,
            ``max_latency``, ``P25``, ``P50``, ``P75``, ``P90``, ``P99``, ``P999``, ``total_inference_time``,
            ``avg_latency``. The first run after each load is omitted unless it is the only one. The
            statistics cover the lifetime of the session.

        Raises
        ------
        qaic.errors.StateError
            Neither ``enable_metrics`` nor ``enable_profiling`` was passed, or nothing ran yet.
        """
        self._require_latencies()
        return self._latencies.summary()

    def print_metrics(self) -> None:
        """Print :meth:`get_metrics` in the documented form."""
        print(format_summary(self.get_metrics()))  # noqa: T201 (printing is what this method is for)

    def plot_latency(self, path: str | os.PathLike[str] | None = None) -> "pathlib.Path | None":
        """Draw the latencies of ``run`` so far: histogram, percentiles, and their curve over time.

        Blocking while the file is written. The runs are those of :meth:`get_metrics`.

        Parameters
        ----------
        path
            Picture to write: ``.html``, a page that needs no network, or ``.png``, which needs matplotlib
            (``pip install 'openqaic[plot]'``). ``None``: a histogram and statistics are printed.

        Returns
        -------
        pathlib.Path or None
            The file, or None.

        Raises
        ------
        qaic.errors.StateError
            Neither ``enable_metrics`` nor ``enable_profiling`` was passed and `profile` recorded nothing,
            nothing ran yet, or matplotlib is missing.
        qaic.errors.OptionError
            ``path`` has another suffix.
        OSError
            The file cannot be written.
        """
        latencies = self._profiled_s
        if latencies is None or self._runtime.records_latencies():
            self._require_latencies()
            latencies = self._latencies.seconds()
        if path is None:
            from qaic.page.latency import Distribution, latency_text

            print(latency_text(Distribution.of(latencies)))  # noqa: T201 (asked for)
            return None
        from qaic import page

        return page.write_latency(latencies, path, title="Latency of Session.run")

    def _require_latencies(self) -> None:
        if not self._runtime.records_latencies():
            raise StateError(
                "latencies are not recorded",
                code="metrics.off",
                hints=("pass enable_metrics=True (or enable_profiling=True) to Session",),
            )

    def print_profile_data(self, n: int | None = None) -> None:
        """Print the call profiles of the first ``n`` runs, or of all.

        Raises
        ------
        qaic.errors.StateError
            ``enable_profiling`` was not passed.
        """
        if not self._runtime.enable_profiling:
            raise StateError(
                "call profiles are not recorded",
                code="profiling.off",
                hints=("pass enable_profiling=True to Session",),
            )
        from qaic.support.text import escape_lines

        for profile in self.profiling_results[:n]:
            print(escape_lines(str(profile)))  # noqa: T201 (printing is what this method is for)
