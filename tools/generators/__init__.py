"""Writers of the files that are made from tables and sources; `make docs` runs them."""
