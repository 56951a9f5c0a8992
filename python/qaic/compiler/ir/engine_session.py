"""Sessions of the engine for shapes, refusals and constants."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnxruntime as ort


def engine_session(
    content: bytes, level: str, libraries: Sequence[Path] = (), *, fuses_pairs: bool = True
) -> "ort.InferenceSession":
    """Load a serialized model on one thread, without messages.

    `level` is the engine's level of optimization. Without `fuses_pairs`, quantized graphs do not change.
    Raises exceptions of many types, because the engine has no type of its own.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not fuses_pairs:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    for library in libraries:
        options.register_custom_ops_library(str(library))
    # Without the last switch, the package retries and prints a message on stdout.
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"], enable_fallback=0)
