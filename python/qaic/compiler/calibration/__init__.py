"""Value ranges of a model's tensors: measured on samples, read from files, written to files.

Quantizing needs to know which values every tensor takes. `load_or_collect` answers with a
`CalibrationProfile`, from the source that the options name. Nothing here quantizes.
"""
