"""Passes about decoders, whose caches are state."""
