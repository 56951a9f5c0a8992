"""Reports and files next to the container."""
