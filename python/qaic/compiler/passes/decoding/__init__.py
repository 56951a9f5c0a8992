"""Passes for decoders, whose caches are state."""
