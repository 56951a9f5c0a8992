"""Reports as text, CSV, JSON and files."""
