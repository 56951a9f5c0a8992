"""Replaces forms that the engine does not support."""
