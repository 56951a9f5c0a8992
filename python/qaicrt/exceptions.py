"""The names of :mod:`qaic.rt.exceptions`."""

from qaic.rt.exceptions import *  # noqa: F403
