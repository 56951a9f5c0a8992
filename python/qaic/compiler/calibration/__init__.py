"""Value ranges of a model's tensors: measured on samples, read from files, written to files.

Quantization requires the range of every tensor. `load_or_collect` returns a `CalibrationProfile` from the
source that the options name. This package does not quantize.
"""
