"""Measurements of a device: stats buffers as numpy views.

>>> buffer = qaic.stats.open("…-aiccyclecounts.bin", qpc="program/")  # doctest: +SKIP
>>> kinds = buffer.descriptor.ops(0).kind[buffer.ops["oc"]]  # doctest: +SKIP

The bytes of a buffer have a layout. The layout of the ``cpu`` device is built in. The layout of real cards is
not public; :func:`register_layout` adds another one.
"""

from qaic.stats.buffer import Core, Engine, Model, StatsBuffer, Thread
from qaic.stats.descriptor import Descriptor, OpColumns
from qaic.stats.layouts import RECORDS, Run, StatsLayout, register_layout
from qaic.stats.opening import descriptors, open  # noqa: A004 - as `gzip.open`, `tarfile.open`

__all__ = [
    "RECORDS",
    "Core",
    "Descriptor",
    "Engine",
    "Model",
    "OpColumns",
    "Run",
    "StatsBuffer",
    "StatsLayout",
    "Thread",
    "descriptors",
    "open",
    "register_layout",
]
