"""Functions for all layers: atomic files, text for people, YAML and JSON."""
