"""The names of :mod:`qaic.rt.dispatch`."""

from qaic.rt.dispatch import *  # noqa: F403
