"""Disturbances of a measurement: threads that wait for a processor, and inferences of different times."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from qaic.stats.reports.capture import Capture
from qaic.support.text import duration

#: smallest share of the measured time for which waits are a disturbance
_MUCH_WAITED: Final = 0.1
#: smallest ratio of the upper to the lower quartile at which inferences differ
_DIFFERENT: Final = 1.5
#: difference of two times that is within the resolution of a clock of microseconds
_RESOLUTION_US: Final = 2.0


@dataclass(frozen=True)
class ProcessorWaits:
    """Seconds of a measurement, and those for which one thread waited for a processor: the longest of all."""

    measured_s: float
    waited_s: float


def disturbances(capture: Capture) -> list[str]:
    """Return the reasons for which a measurement is not certain; empty if there are none.

    Inferences are compared by their quartiles, because a single slow inference does not change a median.
    """
    found = []
    waits = capture.waits
    if waits is not None and waits.waited_s >= _MUCH_WAITED * waits.measured_s > 0:
        found.append(
            f"a thread waited for a processor in {duration(1e6 * waits.waited_s)} of the"
            f" {duration(1e6 * waits.measured_s)} that were measured"
        )
    spans = [span for sample in capture.samples if (span := sample.span_us)]
    lower, upper = np.quantile(spans, (0.25, 0.75)) if spans else (0.0, 0.0)
    if upper > _DIFFERENT * lower and upper - lower > _RESOLUTION_US:
        found.append(
            f"the inferences differ: a quarter took at most {duration(lower)}, and a quarter at least"
            f" {duration(upper)}"
        )
    return found
