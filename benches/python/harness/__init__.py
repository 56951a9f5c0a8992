"""Measurement: processes, turns, figures, and rows of the report."""
