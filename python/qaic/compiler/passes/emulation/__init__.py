"""Passes that round values as the hardware does."""
