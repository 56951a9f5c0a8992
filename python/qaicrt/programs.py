"""The names of :mod:`qaic.rt.programs`."""

from qaic.rt.programs import *  # noqa: F403
