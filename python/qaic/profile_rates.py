"""How often profiles take samples, and how often streams report."""

from __future__ import annotations

from typing import Final

#: word -> every how many inferences of an activation one is recorded
SAMPLING_RATES: Final = {"full": 1, "half": 2, "fourth": 4, "eighth": 8, "sixteenth": 16}

#: milliseconds between two reports of a stream; the first is the default
REPORTING_RATES_MS: Final = (500, 1000, 2000, 4000)
