"""The graph, its constants and what is known about its values."""
