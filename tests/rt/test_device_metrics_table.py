"""The table of device metrics equals the vendor's byte for byte."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qaic.rt.profiling.reports import device_report

METRICS = ["ExecTimeUs", "InfPerSec", "InfPCycles"]
MEASURED = st.fixed_dictionaries(dict.fromkeys(METRICS, st.none() | st.floats(0, 1e9, allow_nan=False)))


def lines_of(measured):
    rows = [(0, number, metrics) for number, metrics in enumerate(measured)]
    return device_report(SimpleNamespace(device_kpis=lambda _program: rows), 0).splitlines()


def test_the_published_count():
    assert lines_of([{}] * 20)[:3] == [
        "--- Cumulative Device Metrics Report ---",
        "Metric,                 Value,         Unit           ",
        "ProfilingSamples_Func_0,20,            Samples        ",
    ]


def test_the_published_row():
    # Three values with the published mean and extremes, and the longest published name.
    values = [117851.250, 3 * 118076.773 - 117851.250 - 118479.479, 118479.479]
    lines = lines_of([{"ExecTimeUs_Dev_2": value, "EffectiveFrequencyMHz_Dev_2": 1.0} for value in values])
    assert lines[3:5] == [
        "--- Aggregated Device Metrics Report ---",
        "Metric,                            Avg,           Min,           Max,           Std            ",
    ]
    assert lines[5].startswith(
        "ExecTimeUs_Dev_2_Func_0,           118076.773,    117851.250,    118479.479,    "
    )
    assert len(lines[5]) == 35 + 4 * 15


@given(st.lists(MEASURED, min_size=1, max_size=20))
def test_rows_are_numpy_s_figures_and_what_was_not_measured_has_none(samples):
    rows = dict(re.findall(r"^(\w+), *(.*?) *$", "\n".join(lines_of(samples)), re.MULTILINE))
    for metric in METRICS:
        values = [sample[metric] for sample in samples if sample[metric] is not None]
        assert (f"{metric}_Func_0" in rows) == bool(values)
        if values:
            found = [float(cell) for cell in re.split(r", *", rows[f"{metric}_Func_0"])]
            expected = [np.mean(values), min(values), max(values), np.std(values)]
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-3 + 1e-6 * max(values))
