"""Inputs of the inferences of ``qaic-runner``."""
