"""The compiler: ONNX and options in, a program container out; `driver.compile_resolved` is the door.

Importing the package is cheap; onnx is loaded only when a model is not in the cache.
"""
