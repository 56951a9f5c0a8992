"""The names of :mod:`qaic.rt.enums`."""

from qaic.rt.enums import *  # noqa: F403
