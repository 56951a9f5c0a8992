"""Measured rows, the fit of the forecast to them, and its figures. The wheel does not contain them."""
