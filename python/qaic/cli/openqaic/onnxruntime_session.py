"""The same model in onnxruntime's own session, for comparison in one run."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from qaic.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray


class OnnxRuntimeSession:
    """A session of onnxruntime's processor provider.

    Parameters
    ----------
    path
        The model.
    threads_per_inference
        Threads that share one inference.

    Raises
    ------
    StateError
        onnxruntime cannot be imported.
    """

    def __init__(self, path: Path, *, threads_per_inference: int = 1) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise StateError(
                f"onnxruntime cannot be imported for the comparison: {error}", code="beside.onnxruntime"
            ) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads_per_inference
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Run one inference."""
        result: list[NDArray[Any]] = self._session.run(None, feeds)
        return result

    def measure(
        self, feeds: Mapping[str, NDArray[Any]], *, threads: int, duration_s: float
    ) -> tuple[NDArray[np.float64], float]:
        """Run inferences from several threads for some time. Blocking.

        Returns
        -------
        tuple
            Seconds of each inference, and inferences per second.
        """
        started = time.perf_counter()
        until = started + duration_s

        def loop() -> list[float]:
            latencies_s = []
            while (begun := time.perf_counter()) < until:
                self._session.run(None, feeds)
                latencies_s.append(time.perf_counter() - begun)
            return latencies_s

        with ThreadPoolExecutor(threads) as pool:
            futures = [pool.submit(loop) for _ in range(threads)]
            found = np.concatenate([future.result() for future in futures])
        return found, len(found) / (time.perf_counter() - started)
