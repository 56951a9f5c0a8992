"""Options whose value is a file, or what a file says."""
