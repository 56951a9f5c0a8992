"""``Session.map``: order, inferences in flight, lazy reading, and failures in the order of inputs."""

import gc
import io
import itertools
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import emulated_cards
import qaic
import session_models
from qaic.errors import DeviceTimeoutError, InferenceError, InputError, InputShapeError, OptionError
from qaic.runtime import imap


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return session_models.save(tmp_path_factory.mktemp("map"), session_models.affine())


@pytest.fixture(scope="module")
def session(path):
    with qaic.Session(path, set_size=4) as session:
        session.setup()
        yield session


@pytest.fixture
def slow_path(tmp_path):
    return session_models.save(tmp_path, session_models.endless(), "slow.onnx")


FOREVER = np.int64(2**62)
ONE = np.zeros(1, np.float32)


def turns(count):
    return {"n": np.int64(count), "x": ONE}


def free_cores():
    return qaic._core.Context().devices()[0]["nsp_free"]


@pytest.fixture
def cores():
    """Free cores before the test, after objects of earlier tests in reference cycles have released their
    cores.
    """
    gc.collect()
    return free_cores()


def come_back(cores):
    """Poll until this number of cores is free; a cancelled inference ends a moment later."""
    looks = 0
    while free_cores() < cores:
        looks += 1
        assert looks < 10_000_000
    return True


def batch(number):
    return {"x": np.full((2, 4), number, np.float32)}


@settings(max_examples=40)
@given(
    count=st.integers(0, 40),
    in_flight=st.none() | st.integers(1, 50),
    set_size=st.integers(1, 5),
    activations=st.integers(1, 3),
)
def test_results_are_those_of_run_in_order(path, count, in_flight, set_size, activations):
    inputs = [batch(number) for number in range(count)]
    with qaic.Session(path, set_size=set_size, num_activations=activations) as session:
        expected = [session.run(one)["y"] for one in inputs]
        found = list(session.map(inputs, in_flight=in_flight))
    assert len(found) == count
    for one, other in zip(found, expected, strict=True):
        assert list(one) == ["y"]
        np.testing.assert_array_equal(one["y"], other)


@settings(max_examples=30)
@given(in_flight=st.integers(1, 12), count=st.integers(0, 30))
def test_inputs_are_taken_as_they_are_needed(session, in_flight, count):
    taken = []

    def source():
        for number in range(count):
            taken.append(number)
            yield batch(number)

    results = session.map(source(), in_flight=in_flight)
    assert taken == []
    for number, _ in enumerate(results):
        assert number + 1 <= len(taken) <= min(count, number + in_flight)
    assert taken == list(range(count))


def test_an_endless_source_may_be_left(session):
    results = session.map(batch(number) for number in itertools.count())
    first = [next(results)["y"] for _ in range(10)]
    results.close()
    for number, found in enumerate(first):
        np.testing.assert_array_equal(found, session.run(batch(number))["y"])


def test_a_buffer_may_be_filled_again_for_the_next_input(session):
    buffer = np.empty((2, 4), np.float32)

    def source():
        for number in range(30):
            buffer[:] = number
            yield {"x": buffer}

    for number, found in enumerate(session.map(source())):
        np.testing.assert_array_equal(found["y"], session.run(batch(number))["y"])


def test_results_are_fresh_arrays(session):
    kept = [found["y"] for found in session.map(batch(number) for number in range(30))]
    for number, found in enumerate(kept):
        np.testing.assert_array_equal(found, session.run(batch(number))["y"])
        assert found.flags.writeable
        assert found.flags.c_contiguous


def test_runs_and_maps_inside_a_map_find_exec_objects(session):
    # All exec objects may hold results of the outer map; results that are not yet fetched must not occupy
    # them.
    for number, outer in enumerate(session.map((batch(number) for number in range(12)), in_flight=20)):
        np.testing.assert_array_equal(session.run(batch(number))["y"], outer["y"])
        inner = list(session.map(batch(other) for other in range(6)))
        assert len(inner) == 6


def test_two_maps_take_turns(session):
    one = session.map(batch(number) for number in range(20))
    other = session.map(batch(number) for number in range(20))
    for first, second in zip(one, other, strict=True):
        np.testing.assert_array_equal(first["y"], second["y"])


@pytest.mark.parametrize("bad_at", [0, 1, 5, 19])
@pytest.mark.parametrize("in_flight", [1, 4, 30])
def test_a_bad_input_is_raised_in_its_turn(session, bad_at, in_flight):
    inputs = [batch(number) for number in range(20)]
    inputs[bad_at] = {"x": np.zeros(7, np.float32)}
    found = []
    with pytest.raises(InputShapeError, match=r"\(7 elements\)"):
        found.extend(session.map(inputs, in_flight=in_flight))
    results = session.map(inputs, in_flight=in_flight)
    found = [next(results)["y"] for _ in range(bad_at)]
    assert len(found) == bad_at
    with pytest.raises(InputShapeError):
        next(results)
    assert next(results, "ended") == "ended"


@pytest.mark.parametrize("wrong", [None, 3, [1], "x", {"z": 1}, {}])
def test_inputs_that_are_no_dictionaries_are_refused_in_their_turn(session, wrong):
    results = session.map([batch(0), wrong])
    next(results)
    with pytest.raises(InputError):
        next(results)


def test_the_sources_own_exception_comes_after_the_results_before_it(session):
    def source():
        yield batch(0)
        yield batch(1)
        raise LookupError("no more data")

    results = session.map(source())
    assert len([next(results), next(results)]) == 2
    with pytest.raises(LookupError, match="no more data"):
        next(results)


def test_something_that_is_no_iterable_is_refused(session):
    with pytest.raises(TypeError, match="not iterable"):
        next(session.map(7))


def test_an_interrupt_of_the_source_is_raised_at_once(session):
    def source():
        yield batch(0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(session.map(source()))
    assert len(list(session.map([batch(0)]))) == 1


@pytest.mark.parametrize("in_flight", [0, -1, 1.5, True, "2"])
def test_rejects_bad_bounds_at_once(session, in_flight):
    with pytest.raises(OptionError, match="in_flight is") as caught:
        session.map([], in_flight=in_flight)
    assert caught.value.code == "map.in_flight"


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1"])
def test_rejects_bad_limits(session, timeout):
    with pytest.raises(OptionError, match="timeout is"):
        next(session.map([batch(0)], timeout=timeout))


def test_an_inference_that_takes_too_long_is_raised_in_its_turn_and_ends(slow_path, cores):
    # One activation of a card runs one inference after another, and does not always start with the first one.
    with qaic.Session(slow_path, num_activations=3, set_size=1) as session:
        found = []
        for limit_s in (0.3, 3, 30):
            # On a busy machine, the first inference may also exceed its limit.
            session.setup()
            results = session.map([turns(1), turns(2**62), turns(2**62), turns(2)], timeout=limit_s)
            with pytest.raises(DeviceTimeoutError) as caught:
                found += (outputs["y"].tolist() for outputs in results)
            assert caught.value.context["timeout_ms"] == round(1000 * limit_s)
            assert next(results, "ended") == "ended"
            emulated_cards.end_stuck_inference(session)
            if found:
                break
        assert found == [[1]]
        # Running inferences ended with the map, so all exec objects are free again.
        assert len(list(session.map([turns(3)] * 6, in_flight=3))) == 6
    assert come_back(cores)


def test_a_kept_exception_keeps_no_cores(noop, noop_qpc, cores):
    noop.plan("execute@*=stuck")
    with qaic.Session(noop_qpc, set_size=1) as session:
        # The second input is prepared and finds no free exec object.
        results = session.map([noop_inputs(session)] * 3, timeout=0.2, in_flight=2)
        with pytest.raises(DeviceTimeoutError) as caught:
            next(results)
    assert come_back(cores)
    assert caught.value.__traceback__ is not None


def test_leaving_early_ends_what_is_under_way(slow_path, cores):
    with qaic.Session(slow_path, num_activations=3, set_size=1) as session:
        results = session.map([turns(1), turns(2**62), turns(2**62), turns(2**62)])
        next(results)
        results.close()
        emulated_cards.end_stuck_inference(session)
        np.testing.assert_array_equal(session.run(turns(4), timeout=60)["y"], [4])
    assert come_back(cores)


def test_a_failing_device_is_raised_in_its_turn(noop, noop_qpc):
    with qaic.Session(noop_qpc, set_size=2) as session:
        session.setup()
        inputs = [noop_inputs(session)] * 6
        noop.plan("execute@3=fail")
        results = session.map(inputs, in_flight=1)
        assert len([next(results), next(results)]) == 2
        with pytest.raises(InferenceError):
            next(results)
        assert len(list(session.map(inputs))) == 6


def noop_inputs(session):
    return {name: np.zeros(shape, dtype) for name, (shape, dtype) in session.model_input_shape_dict.items()}


@pytest.fixture
def noop_qpc():
    return session_models.FIXTURES / "s01_simple_f32_file.qpc"


def test_reset_in_the_middle_loads_again(path, cores):
    session = qaic.Session(path, set_size=3)
    found = []
    for number, outputs in enumerate(session.map(batch(number) for number in range(20))):
        found.append(outputs["y"])
        if number == 5:
            session.reset()
        if number == 9:
            session.update_backend_options(set_size=1)
    for number, one in enumerate(found):
        np.testing.assert_array_equal(one, session.run(batch(number))["y"])
    assert len(found) == 20
    session.reset()
    assert come_back(cores)


# --- progress -------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("sized", [True, False])
def test_progress_is_shown_and_removed(session, clock, monkeypatch, sized):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(imap, "time", clock)
    inputs = [batch(number) for number in range(5)]
    for _ in session.map(inputs if sized else (one for one in inputs), progress=True):
        clock.advance(1)
    written = terminal.getvalue()
    assert (
        "3 of 5 (60 %), 0.7 inferences/s (3 s)" if sized else "\x1b[K3, 0.7 inferences/s (3 s)"
    ) in written
    assert written.endswith("\r\x1b[K")


def test_progress_is_removed_when_a_map_fails(session, clock, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(imap, "time", clock)
    with pytest.raises(InputError):
        [clock.advance(1) for _ in session.map([batch(0), batch(1), batch(2), {}], progress=True)]
    assert terminal.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize("progress", [True, False])
def test_nothing_is_shown_without_a_terminal_or_unasked(session, clock, monkeypatch, progress):
    stream = io.StringIO() if progress else Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    for _ in session.map([batch(number) for number in range(5)], progress=progress):
        clock.advance(20)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("place", [0, 3, 9])
@pytest.mark.parametrize("in_flight", [1, 4])
def test_an_error_names_its_item(session, place, in_flight):
    wrong = {"x": np.zeros((3, 3), np.float32)}
    inputs = [batch(number) for number in range(10)]
    inputs[place] = wrong
    results = session.map(inputs, in_flight=in_flight)
    with pytest.raises(InputShapeError) as caught:
        list(results)
    assert caught.value.context["item"] == place
    assert f"item {place} of the map (the first is 0)" in caught.value.__notes__


def test_an_error_of_the_inputs_themselves_names_its_item(session):
    def broken():
        yield batch(0)
        yield batch(1)
        raise LookupError("no third")

    with pytest.raises(LookupError, match="no third") as caught:
        list(session.map(broken()))
    assert caught.value.__notes__ == ["item 2 of the map (the first is 0)"]


@pytest.mark.virtual_card("a failing operator ends the channel of a card with all inferences in flight")
@pytest.mark.parametrize("in_flight", [1, 4])
def test_an_error_of_an_inference_names_its_item(in_flight):
    node = helper.make_node("Gather", ["table", "place"], ["y"])
    built = session_models.model(
        [node], [("place", "int64", [1])], [("y", "float32", [1])], {"table": np.ones(4, np.float32)}
    )
    with qaic.Session(built) as session:
        results = session.map([[0], [1], [99], [2]], in_flight=in_flight)
        with pytest.raises(InferenceError) as caught:
            list(results)
    assert caught.value.context["item"] == 2
