"""Random sequences of calls to an ``ExecObj``, compared with a model in numpy."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

import qaicrt
import rt_programs
from rt_programs import Client, S

COUNT = 3
VALUES = st.lists(st.integers(-1000, 1000), min_size=COUNT, max_size=COUNT)


class Calls(RuleBasedStateMachine):
    """``sum = a + b`` and ``diff = a - b`` through every form of ``setData``."""

    client: Client

    @initialize()
    def begin(self):
        self.exec_obj = self.client.exec_obj()
        # Numpy views of the memory of every binding; None if the binding was not set or was omitted.
        self.wired = [None] * 4

    def array(self, data, values, index):
        """An array of these values in one of the forms that clients use."""
        plain = np.array(values, np.int32)
        forms = ["plain", "middle", "unaligned"]
        if index < 2:
            forms += ["strided", "reversed", "readonly"]
        form = data.draw(st.sampled_from(forms))
        if form == "middle":
            around = np.full(COUNT + 2, 77, np.int32)
            around[1:-1] = plain
            return around[1:-1]
        if form == "unaligned":
            raw = np.zeros(4 * COUNT + 1, np.uint8)[1:].view(np.int32)
            raw[:] = plain
            return raw
        if form == "strided":
            return np.repeat(plain, 2)[::2]
        if form == "reversed":
            return plain[::-1].copy()[::-1]
        if form == "readonly":
            plain.flags.writeable = False
        return plain

    @rule(data=st.data(), listed=st.lists(st.integers(0, 3), max_size=4, unique=True))
    def list_arrays(self, data, listed):
        arrays = [(index, self.array(data, data.draw(VALUES), index)) for index in listed]
        if not arrays:
            return
        assert self.exec_obj.setData(arrays) == S.QS_SUCCESS
        for index, given in arrays:
            array = given
            # A scattered input is copied, and the copy is read-only.
            if not array.flags.c_contiguous:
                array = array.copy()
                array.flags.writeable = False
            self.wired[index] = array

    @rule(data=st.data(), left_out=st.sets(st.integers(2, 3)), dims=st.booleans(), own=st.booleans())
    def pass_buffers(self, data, left_out, dims, own):
        buffers, views = [], []
        for index in range(4):
            values = np.array(data.draw(VALUES), np.int32)
            empty = index in left_out
            buffers.append(qaicrt.QBuffer(b"" if empty else values.tobytes() if own else values))
            views.append(None if empty else np.frombuffer(buffers[-1], np.int32))
        shapes = [(8, [0]) if index in left_out else (4, [COUNT]) for index in range(4)]
        arguments = (buffers, qaicrt.BufferDimensionsVecRef(shapes)) if dims else (buffers,)
        assert self.exec_obj.setData(*arguments) == S.QS_SUCCESS
        self.wired = views

    @rule(index=st.integers(2, 3))
    def leave_out(self, index):
        assert self.exec_obj.setData([(index, np.array([]))]) == S.QS_SUCCESS
        self.wired[index] = None

    @rule(one=st.integers(0, 1), other=st.integers(2, 3))
    @precondition(lambda self: any(array is not None for array in self.wired))
    def share_an_array(self, one, other):
        array = self.wired[one]
        if array is None or not array.flags.writeable:
            return
        second = self.wired[5 - other]
        is_taken = second is not None and np.shares_memory(second, array)
        status = self.exec_obj.setData([(one, array), (other, array)])
        assert status == (S.QS_INVAL if is_taken else S.QS_SUCCESS)
        if not is_taken:
            self.wired[other] = array

    @rule(index=st.integers(-1, 5), size=st.integers(0, 40))
    def be_refused(self, index, size):
        if size in (0, 4 * COUNT) and 0 <= index <= 3:
            return
        assert self.exec_obj.setData([(index, np.zeros(size, np.uint8))]) == S.QS_INVAL

    @rule(values=VALUES, index=st.integers(0, 1))
    def change_in_place(self, values, index):
        if self.wired[index] is not None and self.wired[index].flags.writeable:
            self.wired[index][:] = values

    @rule(synchronous=st.booleans())
    def infer(self, synchronous):
        if self.wired[0] is None or self.wired[1] is None:
            assert self.exec_obj.run() == S.QS_INVAL
            assert self.client.queue.enqueue(self.exec_obj) == S.QS_INVAL
            return
        a, b = self.wired[0].copy(), self.wired[1].copy()
        before = [None if array is None else array.copy() for array in self.wired]
        if synchronous:
            assert self.exec_obj.run() == S.QS_SUCCESS
        else:
            self.client.infer(self.exec_obj)
        expected = [before[0], before[1], a + b, a - b]
        for index in (2, 3):
            if self.wired[index] is not None:
                np.testing.assert_array_equal(self.wired[index], expected[index])
        for index in (0, 1):
            shared = any(
                self.wired[other] is not None and np.shares_memory(self.wired[index], self.wired[other])
                for other in (2, 3)
            )
            if not shared:
                np.testing.assert_array_equal(self.wired[index], before[index])

    @rule()
    def read_back(self):
        status, buffers = self.exec_obj.getData()
        assert status == S.QS_SUCCESS
        for buffer, array in zip(buffers, self.wired, strict=True):
            assert bytes(buffer) == (b"" if array is None else array.tobytes())


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    return rt_programs.shared(rt_programs.compiled(folder, rt_programs.sum_and_difference(COUNT)))


@pytest.mark.hypothesis
def test_any_sequence_of_calls(client):
    Calls.client = client
    try:
        run_state_machine_as_test(Calls, settings=settings(max_examples=60, stateful_step_count=25))
    finally:
        del Calls.client
