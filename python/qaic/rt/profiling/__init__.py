"""Handles that record samples of inferences, and their reports."""
