"""The compiler: turns a model and options into a program container; `driver.compile_resolved` starts it.

Importing the package is cheap. onnx is loaded only when a model is not in the cache.
"""
