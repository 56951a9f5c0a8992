"""The block about the device is the vendor's to the byte (stats-profiling §6.2)."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qaic.cli.runner_device_report import DeviceReport

METRICS = ["ExecTimeUs", "InfPerSec", "InfPCycles"]
NUMBERS = st.floats(0, 1e9, allow_nan=False)
MEASURED = st.fixed_dictionaries(dict.fromkeys(METRICS, st.none() | NUMBERS))


def test_the_published_rows():
    report = DeviceReport()
    # Three values whose mean, extremes and population deviation are the published ones.
    middle = 3 * 118076.773 - 117851.250 - 118479.479
    for value in (117851.250, middle, 118479.479):
        report.add({"ExecTimeUs": value, "EffectiveFrequencyMHz": 1.0}, device=2)
    lines = report.lines()
    assert lines[0] == "Device Performance: "
    assert lines[1:3] == [
        "--- Cumulative Device Metrics Report ---",
        "Metric,                       Value,         Unit           ",
    ]
    assert lines[3] == "ProfilingSamples_Dev_2_Func_0,3,             Samples        "
    assert lines[4:6] == [
        "--- Aggregated Device Metrics Report ---",
        "Metric,                            Avg,           Min,           Max,           Std            ",
    ]
    assert lines[6].startswith(
        "ExecTimeUs_Dev_2_Func_0,           118076.773,    117851.250,    118479.479,    "
    )


def test_the_published_count():
    report = DeviceReport()
    for _ in range(20):
        report.add({})
    assert report.lines() == [
        "Device Performance: ",
        "--- Cumulative Device Metrics Report ---",
        "Metric,                 Value,         Unit           ",
        "ProfilingSamples_Func_0,20,            Samples        ",
        "--- Aggregated Device Metrics Report ---",
        "Metric,Avg,           Min,           Max,           Std            ",
    ]


def test_nothing_is_said_of_nothing():
    assert DeviceReport().lines() == []


@given(st.lists(MEASURED, min_size=1, max_size=20), st.sampled_from([None, 0, 7]))
def test_rows_are_numpy_s_figures_and_what_was_not_measured_has_none(samples, device):
    report = DeviceReport()
    for sample in samples:
        report.add(sample, device)
    rows = dict(re.findall(r"^(\w+), *(.*?) *$", "\n".join(report.lines()), re.MULTILINE))
    suffix = "_Func_0" if device is None else f"_Dev_{device}_Func_0"
    for metric in METRICS:
        values = [sample[metric] for sample in samples if sample[metric] is not None]
        assert (metric + suffix in rows) == bool(values)
        if values:
            found = [float(cell) for cell in re.split(r", *", rows[metric + suffix])]
            expected = [np.mean(values), min(values), max(values), np.std(values)]
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-3 + 1e-6 * max(values))
