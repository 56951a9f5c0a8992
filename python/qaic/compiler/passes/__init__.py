"""Rewritings of the graph."""
