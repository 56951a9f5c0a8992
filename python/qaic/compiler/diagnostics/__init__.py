"""Errors, warnings, progress and times of a compilation."""
