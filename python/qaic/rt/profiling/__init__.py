"""Handles that take samples of inferences, and what they report."""
