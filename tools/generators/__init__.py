"""Generators of files from tables and sources; `make docs` runs them."""
