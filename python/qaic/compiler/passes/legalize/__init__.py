"""Forms that the engine takes, in the place of those that it does not."""
