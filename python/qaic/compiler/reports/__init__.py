"""Reports and files beside the container."""
