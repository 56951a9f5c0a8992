"""The committed fit matches the committed rows, and the page contains its figures."""

import json
from pathlib import Path

import numpy as np
import pytest

from forecast import figures, fit, measured
from generators import forecast_page
from qaic.forecast.speed import Parameters

PAGE = Path(__file__).parents[2] / "docs" / "forecast.md"
#: Largest distance of a fit with another start, in logarithms of forecasts.
NEAR = 0.02


@pytest.fixture(scope="module")
def data():
    return measured.read()


@pytest.fixture(scope="module")
def held_out(data):
    return figures.held_out(data, json.loads(fit.LEFT_OUT.read_text()))


def test_the_page_has_the_figures_of_the_committed_files():
    assert PAGE.read_text() == forecast_page.render()


def test_what_is_shipped_follows_from_the_committed_files(data, held_out):
    shipped = json.loads(fit.PARAMETERS.read_text())
    assert shipped == figures.shipped(data, shipped["parameters"], held_out)


def test_the_committed_parameters_are_the_minimum(data):
    every = np.arange(len(data.rows))
    known = Parameters.from_json(json.loads(fit.PARAMETERS.read_text())["parameters"])
    again = fit.fit(data, every, known, most=2)
    assert np.abs(data.forecast(again, every) - data.forecast(known, every)).max() < NEAR


@pytest.mark.parametrize("model", ["resnet50", "roberta-large"])
def test_parameters_without_a_model_are_the_minimum_without_its_rows(data, model):
    rows = np.flatnonzero(data.texts("model") != model)
    known = Parameters.from_json(json.loads(fit.LEFT_OUT.read_text())[model])
    again = fit.fit(data, rows, known, most=2)
    assert np.abs(data.forecast(again, rows) - data.forecast(known, rows)).max() < NEAR


def test_every_model_is_left_out_once(data):
    assert set(json.loads(fit.LEFT_OUT.read_text())) == set(data.texts("model"))


def test_intervals_contain_the_stated_share_of_rows_of_unseen_models(data, held_out):
    assert (figures.is_covered(data, held_out).mean(axis=0) >= 0.88).all()


def test_the_budgets_that_the_page_states_as_met_are_met(data, held_out):
    apart = figures.errors(data, held_out)
    language, vision = np.median(apart[data.is_language], axis=0), np.median(apart[~data.is_language], axis=0)
    assert (language <= 0.12).all()
    assert (vision <= 0.20).all()
    for quantity in range(2):
        assert figures.rank_correlations(data, held_out, quantity).mean() >= 0.8


def test_ranks_of_equal_values_are_the_mean():
    assert figures._ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]
