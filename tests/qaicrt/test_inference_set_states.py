"""``InferenceSet`` compared with a simple model of it, for any order of calls.

The ``noop`` device answers immediately, so the outcome of every inference is known after
``waitForCompletion``. The test makes no calls that would block; other tests check threads.
"""

import gc
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import inference_sets
import qaicrt
from inference_sets import S
from qaic import _core

IDS = st.integers(0, 3)
PICK = st.integers(0, 2**16)
AVAILABLE, ACQUIRED, OUT, COLLECTED = "available", "acquired", "out", "collected"

#: Faults of one execution, and the status of its inference.
FAULTS = {"fail": S.QS_ERROR, "lost": S.QS_DEV_ERROR}


class Sets(RuleBasedStateMachine):
    """Handles have numbers; ``states`` contains their states, ``out`` the submitted and uncollected
    inferences.
    """

    @initialize(set_size=st.integers(1, 3), activations=st.integers(1, 2))
    def open(self, set_size, activations):
        self.control = _core.NoopControl()
        self.control.recover()
        self.control.plan("")
        self.client = inference_sets.Client(inference_sets.PLAIN)
        self.client.context.setLogLevel(qaicrt.QLogLevel.QL_ERROR)
        self.size = set_size, activations
        self.images = [np.full(192, value, np.float32) for value in range(8)]
        self.build()

    def build(self):
        self.handles = self.client.inference_set(*self.size)
        self.known = {}
        self.states = dict.fromkeys(range(self.size[0] * self.size[1]), AVAILABLE)
        self.wired = {}
        # By handle, in the order of submission: id, expected status, sent data, and memory of the result.
        self.out = OrderedDict()

    def numbers(self, *states):
        return [number for number, state in self.states.items() if state in states]

    def pick(self, pick, *states):
        candidates = [number for number in self.numbers(*states) if number in self.known]
        return candidates[pick % len(candidates)] if candidates else None

    def pair(self, pick):
        return self.images[pick % len(self.images)], np.zeros(10, np.float32)

    def settle(self):
        statuses = {status for _, status, _ in self.out.values()} - {S.QS_SUCCESS}
        found = self.handles.waitForCompletion()
        assert found in (statuses or {S.QS_SUCCESS})

    def collected(self, answer, number):
        _, expected, (sent, received) = self.out.pop(number)
        status, handle = answer
        assert handle.getId() == number
        assert status == expected
        if status == S.QS_SUCCESS:
            np.testing.assert_array_equal(received, sent[:10])
        self.known[number] = handle
        self.states[number] = COLLECTED

    # --- calls that succeed -------------------------------------------------------------------------

    @precondition(lambda self: self.numbers(AVAILABLE))
    @rule()
    def acquire(self):
        status, handle = self.handles.getAvailable()
        assert status == S.QS_SUCCESS
        number = handle.getId()
        assert self.states[number] == AVAILABLE
        assert self.known.setdefault(number, handle) is handle
        self.states[number] = ACQUIRED

    @rule(pick=PICK)
    def set_buffers(self, pick):
        number = self.pick(pick, AVAILABLE, ACQUIRED, COLLECTED)
        if number is not None:
            self.wired[number] = self.pair(pick)
            given = [qaicrt.QBuffer(array) for array in self.wired[number]]
            assert self.known[number].setBuffers(given) == S.QS_SUCCESS

    @rule(pick=PICK, inference=IDS)
    def submit(self, pick, inference):
        number = self.pick(pick, AVAILABLE, ACQUIRED, COLLECTED)
        if number is None:
            return
        if number in self.wired:
            self.wired[number][1][:] = 0
        answer = self.handles.submit(self.known[number], inference)
        if number in self.wired:
            assert answer == S.QS_SUCCESS
            self.states[number] = OUT
            self.out[number] = inference, S.QS_SUCCESS, self.wired[number]
            self.settle()
        else:
            # A handle without buffers has no effect.
            assert answer == S.QS_INVAL

    @precondition(lambda self: self.numbers(AVAILABLE))
    @rule(pick=PICK, inference=IDS)
    def submit_vector(self, pick, inference):
        self.send_vector(pick, inference, S.QS_SUCCESS)

    def send_vector(self, pick, inference, expected):
        # The collection shows which handle the set used: the one with these buffers.
        pair = self.pair(pick)
        assert self.handles.submit(self.client.vector(*pair), inference) == S.QS_SUCCESS
        self.settle_vector(pair, inference, expected)

    def settle_vector(self, pair, inference, expected):
        status = self.handles.waitForCompletion()
        status, handle = self.handles.getCompletedId(inference)
        older = [number for number, entry in self.out.items() if entry[0] == inference]
        if older:
            # The oldest inference with this id is collected first; the new one stays in the set.
            self.collected((status, handle), older[0])
            status, handle = None, None
        free = self.numbers(AVAILABLE)
        if handle is None:
            self.mystery(pair, inference, expected, free)
            return
        assert handle.getId() in free
        self.out[handle.getId()] = inference, expected, pair
        self.wired[handle.getId()] = pair
        self.collected((status, handle), handle.getId())

    def mystery(self, pair, inference, expected, free):
        """Find the handle that a vector used: the only free handle that cannot be returned twice."""
        taken = []
        while len(taken) < len(free) - 1:
            status, handle = self.handles.getAvailable()
            assert status == S.QS_SUCCESS
            taken.append(handle)
        (number,) = set(free) - {handle.getId() for handle in taken}
        for handle in taken:
            self.known[handle.getId()] = handle
            assert self.handles.putCompleted(handle) == S.QS_SUCCESS
        self.states[number] = OUT
        self.wired[number] = pair
        self.out[number] = inference, expected, pair

    @precondition(lambda self: self.out)
    @rule()
    def collect_next(self):
        answer = self.handles.getCompleted()
        number = answer[1].getId()
        assert number in self.out
        self.collected(answer, number)

    @precondition(lambda self: self.out)
    @rule(pick=PICK)
    def collect_id(self, pick):
        wanted = list(self.out.values())[pick % len(self.out)][0]
        oldest = next(number for number, entry in self.out.items() if entry[0] == wanted)
        self.collected(self.handles.getCompletedId(wanted), oldest)

    @rule(pick=PICK)
    def put_back(self, pick):
        number = self.pick(pick, ACQUIRED, COLLECTED, OUT)
        if number is not None:
            # An ended inference can also be returned without a collection.
            assert self.handles.putCompleted(self.known[number]) == S.QS_SUCCESS
            self.out.pop(number, None)
            self.states[number] = AVAILABLE

    # --- faults -------------------------------------------------------------------------------------

    @precondition(lambda self: self.numbers(AVAILABLE))
    @rule(pick=PICK, inference=IDS)
    def fail(self, pick, inference):
        self.control.plan("execute@1=fail")
        self.send_vector(pick, inference, S.QS_ERROR)
        self.control.plan("")

    @rule()
    def lose_the_device(self):
        self.control.lose()
        if self.numbers(AVAILABLE):
            self.send_vector(0, 0, S.QS_DEV_ERROR)
        self.drop()

    @rule()
    def drop(self):
        """Delete the set with its inferences in flight, and create another one."""
        kept = list(self.known.values())
        del self.handles
        for handle in kept:
            assert handle.setBuffers(self.client.buffers()) == S.QS_INVAL
        self.control.recover()
        assert self.client.cores() == 16
        self.build()
        for handle in kept:
            assert self.handles.submit(handle, 0) == S.QS_INVAL
            assert self.handles.putCompleted(handle) == S.QS_INVAL

    # --- calls that are refused ---------------------------------------------------------------------

    @precondition(lambda self: not self.out)
    @rule()
    def collect_nothing(self):
        assert self.handles.getCompleted() == (S.QS_INVAL, None)
        assert self.handles.waitForCompletion() == S.QS_SUCCESS

    @rule(inference=IDS)
    def collect_unknown(self, inference):
        if inference not in {entry[0] for entry in self.out.values()}:
            assert self.handles.getCompletedId(inference) == (S.QS_INVAL, None)

    @rule(pick=PICK)
    def put_back_twice(self, pick):
        number = self.pick(pick, AVAILABLE)
        if number is not None:
            assert self.handles.putCompleted(self.known[number]) == S.QS_INVAL

    @rule(pick=PICK, inference=IDS)
    def submit_twice(self, pick, inference):
        number = self.pick(pick, OUT)
        if number is not None:
            assert self.handles.submit(self.known[number], inference) == S.QS_INVAL

    @rule(pick=PICK)
    def set_too_few(self, pick):
        number = self.pick(pick, ACQUIRED, COLLECTED)
        if number is not None:
            assert self.known[number].setBuffers([qaicrt.QBuffer(bytes(768))]) == S.QS_INVAL

    @precondition(lambda self: self.numbers(AVAILABLE))
    @rule(inference=IDS)
    def submit_a_bad_vector(self, inference):
        vector = self.client.vector(np.zeros(191, np.float32), np.zeros(10, np.float32))
        assert self.handles.submit(vector, inference) == S.QS_INVAL

    # --- always -------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_lost(self):
        if not hasattr(self, "states"):
            return
        free = [self.handles.getAvailable()[1] for _ in self.numbers(AVAILABLE)]
        assert sorted(handle.getId() for handle in free) == self.numbers(AVAILABLE)
        for handle in free:
            self.known[handle.getId()] = handle
            assert self.handles.putCompleted(handle) == S.QS_SUCCESS
        self.settle()

    def teardown(self):
        if hasattr(self, "handles"):
            del self.handles
            assert self.client.cores() == 16


@pytest.fixture(autouse=True)
def _noop(monkeypatch):
    monkeypatch.setenv("QAIC_DEVICE", "noop")
    yield
    gc.collect()
    _core.NoopControl().recover()
    _core.NoopControl().plan("")


@pytest.mark.hypothesis
def test_any_order_of_calls(capfd):
    Sets.TestCase.settings = settings(
        max_examples=60,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    Sets.TestCase("runTest").runTest()
    # Discards thousands of lines about refusals.
    capfd.readouterr()
