"""The compiler: ONNX and options in, a program container out.

``compile_resolved`` is the door, ``compile_model`` that of the CPU device. Importing this package is cheap;
onnx is loaded only when a model is not in the cache.
"""

from qaic.compiler.driver import compile_model
from qaic.compiler.targets import compile_resolved

__all__ = ["compile_model", "compile_resolved"]
