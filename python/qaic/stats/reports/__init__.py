"""Reports about the measurements of devices.

A report is a function from a :class:`Capture` to a :class:`Report`, from which text, CSV, JSON and the page
are created.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from qaic.report import Column, Report, Table
from qaic.stats.reports.capture import Capture, Sample
from qaic.stats.reports.cores import cores, devices
from qaic.stats.reports.diff import diff
from qaic.stats.reports.engines import engines
from qaic.stats.reports.memory import dma, memory, roofline
from qaic.stats.reports.ops import layers, nodes, ops
from qaic.stats.reports.overview import overview
from qaic.stats.reports.p2p import p2p
from qaic.stats.reports.time.critical_path import critical_path
from qaic.stats.reports.time.host_latency import HostLatencies, host_latency
from qaic.stats.reports.time.overhead import overhead
from qaic.stats.reports.time.waits import gaps, waits

__all__ = ["REPORTS", "Capture", "Column", "HostLatencies", "Report", "Sample", "Table", "diff"]

#: every report of one capture, in the order in which they are shown
REPORTS: Mapping[str, Callable[[Capture], Report]] = MappingProxyType(
    {
        "overview": overview,
        "ops": ops,
        "nodes": nodes,
        "layers": layers,
        "engines": engines,
        "waits": waits,
        "critical-path": critical_path,
        "cores": cores,
        "devices": devices,
        "p2p": p2p,
        "memory": memory,
        "dma": dma,
        "gaps": gaps,
        "roofline": roofline,
        "host-latency": host_latency,
        "overhead": overhead,
    }
)
