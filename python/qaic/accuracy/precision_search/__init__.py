"""Search for the nodes that must stay in a higher precision."""
