"""The compiler: ONNX and options in, a program container for the CPU device out (design §3, §4).

``compile_model`` is the door. Importing this package is cheap; onnx is loaded only when a model is not in
the cache.
"""

from qaic.compiler.front import compile_model

__all__ = ["compile_model"]
