"""Measured rows, the fit of the forecast, and its errors. The wheel does not contain them."""
