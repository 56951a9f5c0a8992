"""Options whose value is a file, or the content of a file."""
