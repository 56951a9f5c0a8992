"""What a comparison found, as objects, text, page and files."""
