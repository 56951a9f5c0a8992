"""The same model in onnxruntime's own session, for comparison in one run."""

import itertools
import math
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic.errors import StateError

_QDQ_PROPAGATION: Final = ("QDQPropagationTransformer",)


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
        # Its warnings about the model would stand between the rows.
        options.log_severity_level = 3
        #: optimizers of the engine that are left out, for it would end the process with them
        self.left_out = _QDQ_PROPAGATION if _ends_the_engine(path) else ()
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=list(self.left_out)
        )

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Run one inference."""
        result: list[NDArray[Any]] = self._session.run(None, feeds)
        return result

    def measure(
        self,
        feeds: Mapping[str, NDArray[Any]],
        *,
        threads: int,
        duration_s: float,
        inferences: int | None = None,
    ) -> tuple[NDArray[np.float64], float]:
        """Run inferences from several threads for some time, or ``inferences`` of them. Blocking.

        Returns
        -------
        tuple
            Seconds of each inference, and inferences per second.
        """
        started = time.perf_counter()
        until = started + (duration_s if inferences is None else math.inf)
        # Taking from an iterator is one step of the interpreter: threads share it.
        left = itertools.repeat(None) if inferences is None else iter(range(inferences))

        def loop() -> list[float]:
            latencies_s = []
            for _ in left:
                if (begun := time.perf_counter()) >= until:
                    break
                self._session.run(None, feeds)
                latencies_s.append(time.perf_counter() - begun)
            return latencies_s

        with ThreadPoolExecutor(threads) as pool:
            futures = [pool.submit(loop) for _ in range(threads)]
            found = np.concatenate([future.result() for future in futures])
        return found, len(found) / (time.perf_counter() - started)


def _ends_the_engine(path: Path) -> bool:
    """Return whether the engine would crash: it moves dequantization to where a body captures a value.

    What cannot be read as a model is left to the engine, which reports it.
    """
    import onnx
    from google.protobuf.message import DecodeError

    from qaic.compiler.ir.graph_walk import all_graphs, find_nodes
    from qaic.compiler.passes.legalize.legalize_exports import moved_captures

    try:
        graph = onnx.load(str(path), load_external_data=False).graph
    except (DecodeError, OSError):
        return False
    return bool(find_nodes(graph.node, {"DequantizeLinear"})) and any(map(moved_captures, all_graphs(graph)))
