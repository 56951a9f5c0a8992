"""Packages of custom operators for other back ends, kept as data."""

from __future__ import annotations

from qaic.configs.base import OpenModel


class OpPackageIdentifier(OpenModel):
    """A package of custom operators. Every keyword is kept as it is given.

    Custom operators of an AIC compilation are named by the option ``register_custom_op`` instead.
    """
