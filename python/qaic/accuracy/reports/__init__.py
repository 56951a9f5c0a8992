"""Results of a comparison, as objects, text, page and files."""
