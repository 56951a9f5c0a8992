"""Types and shapes of values."""
