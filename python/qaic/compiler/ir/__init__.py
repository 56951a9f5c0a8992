"""The graph, its constants, and facts about its values."""
