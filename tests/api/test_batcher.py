"""Requests that share inferences get the same results as separate requests, in every order and number."""

import threading
from concurrent.futures import CancelledError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import qaic
import session_models
from child_process import WATCHDOG_S as SOON
from qaic.errors import DeviceTimeoutError, InferenceError, InputError, InputShapeError, StateError
from qaic.serving.batch_shapes import BatchShapes
from qaic.serving.batcher import Batcher

WIDTH = 16
BATCH = 8


def two_lengths():
    """A model for batches of 1 and 8 rows of 2, and of 4 rows of 6."""
    weight = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    return session_models.model(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["y"])],
        [("x", "float32", ["b", "n", 4])],
        [("y", "float32", ["b", "n", 4])],
        {"w": weight},
    )


LENGTHS = [{"b": 1, "n": 2}, {"b": 8, "n": 2}, {"b": 4, "n": 6}]


def gather():
    """Selects rows of a table by index; an index outside the table fails in the engine."""
    return session_models.model(
        [helper.make_node("Gather", ["table", "i"], ["y"])],
        [("i", "int64", [4, 1])],
        [("y", "float32", [4, 1, 2])],
        {"table": np.arange(20, dtype=np.float32).reshape(10, 2)},
    )


@pytest.fixture(scope="module")
def affine():
    with qaic.Session(session_models.affine(WIDTH, BATCH), set_size=4) as session:
        # The program is loaded here, so that the state of a card after a test equals that before it.
        session.setup()
        yield session, BatchShapes(session)


@pytest.fixture(scope="module")
def lengths():
    with qaic.Session(two_lengths(), network_specialization_config=LENGTHS, set_size=2) as session:
        # The program is loaded here, so that the state of a card after a test equals that before it.
        session.setup()
        yield session, BatchShapes(session)


class Gate:
    """Collects the work that a batcher schedules, as an event loop does in one turn."""

    def __init__(self):
        self.calls = []

    def __call__(self, function):
        self.calls.append(function)

    def open(self):
        calls, self.calls = self.calls, []
        for function in calls:
            function()


def rows(count, seed, width=WIDTH):
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


def alone(session, x):
    """Return the results of rows in a separate inference of the program."""
    full = np.zeros((BATCH, WIDTH), np.float32)
    full[: len(x)] = x
    return session.run(x=full)["y"][: len(x)]


@given(
    counts=st.lists(st.integers(1, BATCH), min_size=1, max_size=24),
    turns=st.lists(st.integers(1, 24), max_size=6),
    delay_s=st.sampled_from([0.0, 0.001]),
)
def test_batched_equals_unbatched_bit_for_bit(affine, counts, turns, delay_s):
    session, shapes = affine
    gate = Gate()
    reports = []
    batcher = Batcher(session, shapes, schedule=gate, on_batch=reports.append, max_queue_delay_s=delay_s)
    inputs = [rows(count, seed) for seed, count in enumerate(counts)]
    futures = []
    for index, x in enumerate(inputs):
        futures.append(batcher.submit({"x": x}))
        if index in turns:
            gate.open()
    gate.open()
    for x, future in zip(inputs, futures, strict=True):
        assert future.result(SOON)["y"].tobytes() == alone(session, x).tobytes()
    assert batcher.close(SOON)
    assert sum(report.rows for report in reports) == sum(counts)
    assert all(report.rows <= report.size == BATCH for report in reports)


@given(
    requests=st.lists(
        st.tuples(st.sampled_from([2, 6]), st.integers(1, 8)).map(
            lambda pair: (pair[0], min(pair[1], 8 if pair[0] == 2 else 4))
        ),
        min_size=1,
        max_size=16,
    )
)
def test_each_batch_has_the_shapes_that_fit(lengths, requests):
    session, shapes = lengths
    gate = Gate()
    batcher = Batcher(session, shapes, schedule=gate)
    inputs = [
        np.random.default_rng(seed).normal(size=(count, length, 4)).astype(np.float32)
        for seed, (length, count) in enumerate(requests)
    ]
    futures = [batcher.submit({"x": x}) for x in inputs]
    gate.open()
    for x, future in zip(inputs, futures, strict=True):
        size = 4 if x.shape[1] == 6 else 8
        full = np.zeros((size, *x.shape[1:]), np.float32)
        full[: len(x)] = x
        assert future.result(SOON)["y"].tobytes() == session.run(x=full)["y"][: len(x)].tobytes()
    assert batcher.close(SOON)


def test_the_smallest_shapes_that_hold_a_batch_are_chosen(lengths):
    _, shapes = lengths
    one = shapes.admit({"x": np.zeros((1, 2, 4), np.float32)})
    assert shapes.max_batch_size == 8
    assert shapes.stack([one])["x"].shape == (1, 2, 4)
    assert shapes.stack([one, one])["x"].shape == (8, 2, 4)
    assert shapes.capacity(shapes.admit({"x": np.zeros((1, 6, 4), np.float32)}).group) == 4


def test_many_threads_share_batches(affine):
    session, shapes = affine
    reports = []
    batcher = Batcher(session, shapes, on_batch=reports.append)
    wrong = []

    def client(seed):
        for turn in range(20):
            x = rows(1 + (seed + turn) % 3, seed * 100 + turn)
            if batcher.submit({"x": x}).result(SOON)["y"].tobytes() != alone(session, x).tobytes():
                wrong.append((seed, turn))

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sum(report.requests for report in reports) == 160
    assert (batcher.waiting, batcher.running) == (0, 0)
    assert batcher.busy_s > 0


def test_requests_of_one_turn_fill_batches(affine):
    session, shapes = affine
    gate, reports = Gate(), []
    batcher = Batcher(session, shapes, schedule=gate, on_batch=reports.append)
    futures = [batcher.submit({"x": rows(1, seed)}) for seed in range(20)]
    assert len(gate.calls) == 1
    gate.open()
    for future in futures:
        future.result(SOON)
    batcher.close(SOON)
    assert [report.rows for report in reports] == [8, 8, 4]


def test_a_delay_lets_requests_come_together(affine):
    session, shapes = affine
    reports = []
    batcher = Batcher(session, shapes, on_batch=reports.append, max_queue_delay_s=3600)
    futures = [batcher.submit({"x": rows(4, seed)}) for seed in range(2)]
    for future in futures:
        future.result(SOON)
    assert [report.rows for report in reports] == [8]
    last = batcher.submit({"x": rows(1, 0)})
    assert not last.done()
    assert batcher.waiting == 1
    # Closing waits only for the device.
    assert batcher.close(SOON)
    assert last.result(0)["y"].shape == (1, WIDTH)


def test_a_full_queue_refuses_at_once(affine):
    session, shapes = affine
    gate = Gate()
    batcher = Batcher(session, shapes, schedule=gate, max_queue_size=3, name="m")
    futures = [batcher.submit({"x": rows(1, 0)}) for _ in range(3)]
    with pytest.raises(StateError, match="the number of waiting requests is 3, the limit") as refused:
        batcher.submit({"x": rows(1, 0)})
    assert refused.value.code == "serving.queue_full"
    gate.open()
    for future in futures:
        future.result(SOON)
    batcher.submit({"x": rows(1, 0)})
    gate.open()
    assert batcher.close(SOON)


def test_what_is_cancelled_leaves_the_queue(affine):
    session, shapes = affine
    gate, reports = Gate(), []
    batcher = Batcher(session, shapes, schedule=gate, on_batch=reports.append)
    futures = [batcher.submit({"x": rows(1, seed)}) for seed in range(6)]
    assert all(future.cancel() for future in futures[::2])
    assert batcher.waiting == 3
    gate.open()
    for future in futures[1::2]:
        future.result(SOON)
    for future in futures[::2]:
        with pytest.raises(CancelledError):
            future.result(0)
    assert batcher.close(SOON)
    assert [report.rows for report in reports] == [3]
    assert not futures[1].cancel()


def test_what_is_late_does_not_run(affine):
    session, shapes = affine
    gate, reports = Gate(), []
    batcher = Batcher(session, shapes, schedule=gate, on_batch=reports.append)
    late = batcher.submit({"x": rows(1, 0)}, timeout_s=0)
    in_time = batcher.submit({"x": rows(1, 1)}, timeout_s=3600)
    gate.open()
    with pytest.raises(DeviceTimeoutError, match="no inference started"):
        late.result(SOON)
    assert in_time.result(SOON)["y"].shape == (1, WIDTH)
    assert batcher.close(SOON)
    assert [report.rows for report in reports] == [1]


@pytest.mark.virtual_card("failed cores of a card end the whole program")
def test_a_request_that_fails_fails_alone():
    with qaic.Session(gather()) as session:
        shapes = BatchShapes(session)
        gate = Gate()
        batcher = Batcher(session, shapes, schedule=gate)
        futures = [batcher.submit({"i": np.array([[index]])}) for index in (1, 99, 3)]
        gate.open()
        assert futures[0].result(SOON)["y"].tolist() == [[[2, 3]]]
        with pytest.raises(InferenceError):
            futures[1].result(SOON)
        assert futures[2].result(SOON)["y"].tolist() == [[[6, 7]]]
        assert batcher.close(SOON)


@pytest.mark.virtual_card("inferences on an emulated card are slow")
def test_an_inference_that_is_longer_than_those_before_it():
    """Short inferences run on the submitting thread; long inferences move to another thread."""
    with qaic.Session(session_models.endless()) as session:
        reports = []
        batcher = Batcher(session, BatchShapes(session), on_batch=reports.append)

        def ask(turns):
            return batcher.submit({"n": np.array(turns), "x": np.zeros(1, np.float32)})

        for _ in range(40):
            assert ask(1).result(SOON)["y"] == 1
        for turns in (300_000, 1, 300_000):
            assert ask(turns).result(SOON)["y"] == turns
        assert batcher.close(SOON)
        assert all(report.error is None for report in reports)


def test_nothing_is_taken_after_the_end(affine):
    session, shapes = affine
    batcher = Batcher(session, shapes, schedule=Gate(), name="m")
    left = batcher.submit({"x": rows(1, 0)})
    assert not batcher.close(0)
    for refused in (lambda: left.result(0), lambda: batcher.submit({"x": rows(1, 0)})):
        with pytest.raises(StateError, match="'m' is being unloaded"):
            refused()


def test_rows_that_see_each_other_are_no_batch():
    model = session_models.model(
        [helper.make_node("Softmax", ["x"], ["y"], axis=0)],
        [("x", "float32", [4, 2])],
        [("y", "float32", [4, 2])],
    )
    with qaic.Session(model) as session:
        shapes = BatchShapes(session)
        assert not shapes.is_batched
        assert "Softmax 'y' works across the batch" in shapes.reason
        assert shapes.max_batch_size == 0
        x = rows(4, 0, 2)
        batcher = Batcher(session, shapes)
        assert batcher.submit({"x": x}).result(SOON)["y"].tobytes() == session.run(x=x)["y"].tobytes()
        with pytest.raises(InputShapeError):
            batcher.submit({"x": x[:2]})
        assert batcher.close(SOON)


def test_rows_may_be_declared_to_be_independent():
    model = session_models.model(
        [helper.make_node("Softmax", ["x"], ["y"], axis=0)],
        [("x", "float32", [4, 2])],
        [("y", "float32", [4, 2])],
    )
    with qaic.Session(model) as session:
        shapes = BatchShapes(session, is_declared=True)
        assert shapes.is_batched
        assert shapes.max_batch_size == 4


def test_a_batch_that_cannot_be_counted_is_answered_once(affine):
    session, shapes = affine
    reports = []

    def count(report):
        reports.append(report)
        raise ValueError

    batcher = Batcher(session, shapes, on_batch=count)
    # The first inferences run on threads of the session, later ones on the threads that submit them.
    for number in range(1, 17):
        x = rows(1, number)
        assert batcher.submit({"x": x}).result(30)["y"].tobytes() == alone(session, x).tobytes()
        assert len(reports) == number
    assert batcher.close(30)
    assert batcher.running == batcher.waiting == 0


def test_first_dimensions_that_differ_are_no_batch():
    model = session_models.model(
        [helper.make_node("Transpose", ["x"], ["y"])],
        [("x", "float32", [4, 2])],
        [("y", "float32", [2, 4])],
    )
    with qaic.Session(model) as session:
        assert "no common first dimension" in BatchShapes(session).reason


def test_state_on_the_device_is_refused():
    model = session_models.model(
        [helper.make_node("Add", ["past_key", "x"], ["past_key_RetainedState"])],
        [("past_key", "float32", [1, 2]), ("x", "float32", [1, 2])],
        [("past_key_RetainedState", "float32", [1, 2])],
    )
    with qaic.Session(model, retained_state=True) as session, pytest.raises(StateError, match="past_key"):
        BatchShapes(session)


@pytest.mark.parametrize(
    ("inputs", "part"),
    [
        ({}, "missing inputs: x"),
        ({"x": rows(1, 0), "z": rows(1, 0)}, "input 'z' does not exist"),
        ({"x": rows(9, 0)}, r"x \[9, 16\]; allowed are x \[1 to 8, 16\]"),
        ({"x": rows(0, 0)}, r"x \[0, 16\]"),
        ({"x": np.float32(1)[None].reshape(())}, r"x \[\]"),
        ({"x": rows(1, 0, 3)}, r"x \[1, 3\]"),
        ({"x": np.full((1, WIDTH), 1e300)}, "contains 1e\\+300"),
        ({"x": np.zeros((1, WIDTH), complex)}, "does not convert"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_before_the_queue(affine, inputs, part):
    session, shapes = affine
    batcher = Batcher(session, shapes)
    with pytest.raises(InputError, match=part):
        batcher.submit(inputs)
    assert batcher.waiting == 0


def test_types_convert_as_for_a_session(affine):
    session, shapes = affine
    x = rows(2, 0)
    batcher = Batcher(session, shapes)
    for given_x in (x.astype(np.float64), np.asfortranarray(x)):
        assert batcher.submit({"x": given_x}).result(SOON)["y"].tobytes() == alone(session, x).tobytes()
    assert batcher.close(SOON)
