"""Measurement: processes, turns, figures and their rows."""
