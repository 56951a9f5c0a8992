"""Passes that make the graph round as the hardware does."""
