"""The names of :mod:`qaic.rt.properties`."""

from qaic.rt.properties import *  # noqa: F403
