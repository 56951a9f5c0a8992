"""Trained models of published packages: where they come from, and how each is judged."""
