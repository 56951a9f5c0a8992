"""Properties of all forecasts, for any model and any parameters."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limited
from hypothesis import strategies as st

from qaic.forecast.operations import WORK_DTYPE, OperationTable
from qaic.forecast.speed import CARDS, LIMITS, Parameters, Settings, forecast, shipped

CARD = CARDS["standard"]
SIZES = st.integers(0, 10**8)


@st.composite
def tables(draw):
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(1, 50),
                SIZES,
                st.integers(1, 4096),
                st.integers(1, 4096),
                SIZES,
                SIZES,
                SIZES,
                SIZES,
                st.integers(0, 1),
            ),
            min_size=1,
            max_size=6,
        )
    )
    return OperationTable(
        samples=draw(st.integers(1, 4)),
        input_bytes=draw(st.integers(1, 10**7)),
        output_bytes=draw(st.integers(1, 10**7)),
        state_bytes=draw(st.integers(0, 10**7)),
        rows=np.array(rows, WORK_DTYPE),
    )


FEWER = limited(max_examples=40)
SETTINGS = st.tuples(st.integers(1, 14), st.integers(1, 14), st.integers(1, 32), st.integers(1, 8))


def one(table, cores, instances, batch, set_size, parameters=None, **options):
    settings = Settings(*(np.array([float(value)]) for value in (cores, instances, batch, set_size)))
    found = forecast(table, settings, parameters or shipped().parameters, CARD, **options)
    return float(found.samples_per_s[0]), float(found.latency_s[0]), float(found.device_s[0])


@FEWER
@given(tables(), SETTINGS)
def test_throughput_times_latency_are_the_samples_in_flight(table, settings):
    speed, delay, device = one(table, *settings)
    _, instances, batch, set_size = settings
    assert speed * delay == pytest.approx(instances * batch * set_size)
    assert delay >= device * (1 - 1e-9)


@FEWER
@given(tables(), SETTINGS, st.sampled_from([field.name for field in fields(Parameters)]))
def test_nothing_gets_slower_by_a_faster_card_or_host(table, settings, name):
    now = shipped().parameters
    # Rates and kept bytes grow; times, losses and half sizes shrink.
    is_cost = name.endswith(("_s", "_half", "_loss"))
    better = replace(now, **{name: getattr(now, name) * (0.5 if is_cost else 2)})
    before, after = one(table, *settings), one(table, *settings, better)
    assert after[0] >= before[0] * (1 - 1e-9)
    assert after[1] <= before[1] * (1 + 1e-9)


@FEWER
@given(tables(), SETTINGS)
def test_more_in_flight_and_more_instances_give_no_less_throughput(table, settings):
    cores, instances, batch, set_size = settings
    now = one(table, *settings)[0]
    assert one(table, cores, instances, batch, set_size + 1)[0] >= now * (1 - 1e-9)
    assert one(table, cores, instances + 1, batch, set_size)[0] >= now * (1 - 1e-9)


@FEWER
@given(tables(), SETTINGS)
def test_more_cores_are_no_slower_while_no_sample_is_cut(table, settings):
    cores, instances, batch, set_size = settings
    batch = max(batch, cores + 1)
    fewer, more = (one(table, n, instances, batch, set_size) for n in (cores, cores + 1))
    assert more[2] <= fewer[2] * (1 + 1e-9)
    assert more[0] >= fewer[0] * (1 - 1e-9)


@FEWER
@given(tables(), SETTINGS)
def test_a_larger_batch_takes_longer_and_never_exceeds_the_link(table, settings):
    cores, instances, batch, set_size = settings
    now, larger = (one(table, cores, instances, n, set_size) for n in (batch, batch + cores))
    assert larger[2] >= now[2] * (1 - 1e-9) or cores > batch
    parameters = shipped().parameters
    limit = min(parameters.input_rate / table.input_bytes, parameters.output_rate / table.output_bytes)
    assert now[0] <= limit * table.samples * (1 + 1e-9)


@FEWER
@given(tables(), SETTINGS, st.sampled_from(["int8", "mxfp6"]))
def test_smaller_weights_are_not_slower(table, settings, precision):
    assert one(table, *settings, precision=precision)[2] <= one(table, *settings)[2] * (1 + 1e-9)


@FEWER
@given(tables(), st.lists(SETTINGS, min_size=1, max_size=5))
def test_many_configurations_at_once_are_those_one_by_one(table, rows):
    found = forecast(table, Settings(*np.array(rows, np.float64).T), shipped().parameters, CARD)
    for at, row in enumerate(rows):
        assert one(table, *row)[0] == pytest.approx(found.samples_per_s[at])
    assert set(found.limits) <= set(range(len(LIMITS)))
