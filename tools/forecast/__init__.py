"""Measured rows, the fit of the forecast to them, and its figures; nothing of it is shipped."""
