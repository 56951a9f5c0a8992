"""Passes that replace forms of operators that the engine does not support."""
