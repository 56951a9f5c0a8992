"""The names of :mod:`qaic.rt.containers`."""

from qaic.rt.containers import *  # noqa: F403
