"""Value ranges of a model's tensors: measured on samples, read from files, written to files.

Quantizing needs to know which values every tensor takes. `obtain` answers with a `Profile`, from wherever the
options say (compile-options §3.4, §3.5, §3.8, §4.4). Nothing here quantizes.
"""
