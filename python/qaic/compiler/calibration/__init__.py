"""Value ranges of a model's tensors: measured on samples, read from files, written to files.

Quantizing needs to know which values every tensor takes. `obtain` answers with a `Profile`, from wherever the
options say. Nothing here quantizes.
"""
