"""The numpy types of the records, from the one table that reads and writes them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from qaic._core import stats_record_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECTIONS = ("CORE", "THREAD", "PORT", "RING", "PMU_EVENTS", "PMU", "OP", "OP_PMU")


def _dtype(section: str) -> np.dtype[Any]:
    fields: list[Any] = [
        (name, code) if count == 1 else (name, code, (count,))
        for name, code, count in stats_record_fields(section)
    ]
    return np.dtype(fields)


#: section -> type of its records: little-endian, no padding
RECORDS: Final[Mapping[str, np.dtype[Any]]] = MappingProxyType({name: _dtype(name) for name in _SECTIONS})
