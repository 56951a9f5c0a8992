"""Reports about the times and waits of operations."""
