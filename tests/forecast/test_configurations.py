"""The configurations that are listed first fit the card, and no other configuration is better."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from forecast.measured import read
from qaic.forecast.calibration import Measurements, correct
from qaic.forecast.configurations import OBJECTIVES, Correction, Fixed, Ranking, candidates
from qaic.forecast.speed import CARDS, Settings, forecast, reasons_outside, shipped

DATA = read()
KEYS = st.sampled_from(sorted(DATA.tables))
NONE = Correction(1.0, 1.0, 0.1, 0.2)


def ranked(table, card, fixed=Fixed(), correction=NONE):  # noqa: B008
    settings = candidates(card, fixed)
    return Ranking(table, settings, shipped().parameters, card, precision="fp16", correction=correction)


@given(KEYS, st.sampled_from(sorted(CARDS)))
def test_the_first_are_within_a_step_of_the_best_and_fit_the_card(key, name):
    card, table = CARDS[name], DATA.tables[key]
    ranking = ranked(table, card)
    every = forecast(table, ranking.settings, shipped().parameters, card)
    best = {objective: ranking.best(objective) for objective in OBJECTIVES}
    assert best["throughput"][0].samples_per_s[1] >= every.samples_per_s.max() * 0.98
    assert best["latency"][0].latency_s[1] <= every.latency_s.min() * 1.02
    for found in best.values():
        assert len({(one.cores, one.batch) for one in found}) == len(found) == 3
        assert all(one.cores * one.instances <= card.cores for one in found)


def test_a_device_ranks_hundreds_of_configurations_at_once():
    assert len(candidates(CARDS["ultra"], Fixed()).cores) > 700


@given(st.integers(1, 14), st.integers(1, 14), st.integers(1, 64), st.integers(1, 16))
def test_what_is_fixed_stays(cores, instances, batch, set_size):
    found = candidates(CARDS["standard"], Fixed(cores, instances, batch, set_size))
    expected = [(cores, instances, batch, set_size)] if cores * instances <= 14 else []
    assert list(zip(*found, strict=True)) == expected


@given(KEYS, st.integers(1, 50), st.floats(0.2, 5))
def test_runs_move_a_forecast_towards_them_and_never_widen_it(key, count, factor):
    table, card = DATA.tables[key], CARDS["standard"]
    settings = Settings(*(np.full(count, value, np.float64) for value in (2, 7, 4, 2)))
    made = forecast(table, settings, shipped().parameters, card)
    runs = Measurements(settings, made.samples_per_s * factor, made.latency_s / factor)
    before = correct(table, card, "fp16", shipped())
    after = correct(table, card, "fp16", shipped(), measurements=runs)
    low, high = sorted((1.0, factor))
    assert low - 1e-9 <= after.samples_per_s <= high + 1e-9
    assert 1 / high - 1e-9 <= after.latency_s <= 1 / low + 1e-9
    assert after.samples_per_s_width <= before.samples_per_s_width
    assert after.latency_s_width <= before.latency_s_width


@given(KEYS, st.floats(1, 8))
def test_intervals_widen_by_the_factor(key, widening):
    near, far = (
        correct(DATA.tables[key], CARDS["standard"], "fp16", shipped(), widening=factor)
        for factor in (1.0, widening)
    )
    assert far.samples_per_s_width == near.samples_per_s_width * widening
    assert far.latency_s_width == near.latency_s_width * widening


def test_measured_rows_are_inside_of_the_range():
    for key, table in DATA.tables.items():
        settings = Settings(*(values[key == DATA.keys] for values in DATA.settings))
        assert not reasons_outside(table, settings, shipped(), CARDS["standard"], "fp16")
