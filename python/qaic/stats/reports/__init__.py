"""Reports over what devices measured: the questions of stats-profiling §7 and their answers.

A report is a function from a :class:`Capture` to a :class:`Report`; text, CSV, JSON and the page are made
from that value.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from qaic.stats.reports.capture import Capture, Sample
from qaic.stats.reports.ops import ops
from qaic.stats.reports.table import Column, Report, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["REPORTS", "Capture", "Column", "Report", "Sample", "Table"]

#: every report of one capture, in the order in which they are shown
REPORTS: Mapping[str, Callable[[Capture], Report]] = MappingProxyType({"ops": ops})
