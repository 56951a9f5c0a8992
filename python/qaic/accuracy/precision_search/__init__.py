"""Searching the nodes that have to stay in a higher precision."""
