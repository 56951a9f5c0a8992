"""Windows of device tensors: ``createSlicingSpecHandle`` and ``setDataWithSlices``."""

import gc
import json
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import qaicrt
import rt_programs
import session_models
from rt_programs import NEXT, STATE, Client, S, Y
from rt_programs import X as IN

ONE = np.ones(1, np.float32)
ZERO = np.zeros(1, np.float32)


def spec(name="state(_.*)?", item=4, starts=("row", "column")):
    return json.dumps(
        {
            "BufferSpecs": [
                {"Name": name, "ElemSize": item, "DimSpecs": [{"start": start} for start in starts]}
            ]
        }
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("counter")
    return rt_programs.compiled(folder, rt_programs.counter(), retained_state=True)


class Counter(Client):
    """A program whose state is [3, 4]; ``y`` is the state before the inference."""

    def __init__(self, path, text=None):
        super().__init__(path)
        self.exec = self.exec_obj()
        self.y = np.zeros((3, 4), np.float32)
        assert self.exec.setData([(IN, ZERO), (Y, self.y)]) == S.QS_SUCCESS
        status, self.spec = self.program.createSlicingSpecHandle(text or spec())
        assert status == S.QS_SUCCESS

    def slice(self, binding, array, row=0, column=0):
        params = [("row", row), ("column", column)]
        return self.exec.setDataWithSlices([(binding, array)], self.spec, params)

    def window(self, binding, array, row=0, column=0):
        status, handle = self.slice(binding, array, row, column)
        assert status == S.QS_SUCCESS
        return handle

    def state(self):
        """Return the state, after an inference that does not change it."""
        self.infer(self.exec)
        return self.y.copy()


@pytest.fixture
def counter(path):
    return Counter(path)


def refused(capfd, outcome, *parts):
    error = capfd.readouterr().err
    assert outcome == (S.QS_INVAL, None), error
    assert "[ERROR]" in error
    for part in parts:
        assert part in error


# --- effects of a window ----------------------------------------------------------------------------


def test_upload_changes_a_part_of_the_state(counter):
    assert "SlicingHandle" in repr(counter.window(STATE, np.full((2, 3), 7, np.float32), row=1, column=1))
    expected = np.zeros((3, 4))
    expected[1:, 1:] = 7
    np.testing.assert_array_equal(counter.state(), expected)
    np.testing.assert_array_equal(counter.state(), expected)


def test_download_reads_a_part_of_the_result(counter):
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    window = np.zeros((1, 2), np.float32)
    counter.window(NEXT, window, row=2, column=1)
    counter.infer(counter.exec, [(STATE, whole), (IN, ONE)])
    assert window.tolist() == [[10, 11]]


def test_windows_add_up_and_are_used_once(counter):
    for row in range(3):
        counter.window(STATE, np.full((1, 4), row + 1, np.float32), row=row)
    np.testing.assert_array_equal(counter.state(), np.repeat([[1], [2], [3]], 4, 1))
    # Without another window, the state continues.
    counter.infer(counter.exec, [(IN, ONE)])
    np.testing.assert_array_equal(counter.state(), np.repeat([[2], [3], [4]], 4, 1))


def test_a_later_window_wins(counter):
    counter.window(STATE, np.full((3, 4), 1, np.float32))
    counter.window(STATE, np.full((1, 1), 2, np.float32), row=1, column=2)
    expected = np.ones((3, 4))
    expected[1, 2] = 2
    np.testing.assert_array_equal(counter.state(), expected)


def test_windows_are_used_in_place(counter):
    array = np.zeros((1, 4), np.float32)
    counter.window(STATE, array)
    array[:] = 9
    assert counter.state()[0].tolist() == [9] * 4


def test_a_list_of_arrays_keeps_windows_and_buffers_drop_them(counter):
    counter.window(STATE, np.ones((3, 4), np.float32))
    assert counter.exec.setData([(IN, ZERO)]) == S.QS_SUCCESS
    np.testing.assert_array_equal(counter.state(), np.ones((3, 4)))
    counter.window(STATE, np.full((3, 4), 5, np.float32))
    buffers = [qaicrt.QBuffer(ZERO), qaicrt.QBuffer(b""), qaicrt.QBuffer(counter.y), qaicrt.QBuffer(b"")]
    assert counter.exec.setData(buffers) == S.QS_SUCCESS
    np.testing.assert_array_equal(counter.state(), np.ones((3, 4)))


def test_upload_and_download_in_one_inference(counter):
    up, down = np.full((1, 4), 3, np.float32), np.zeros((2, 1), np.float32)
    status, _ = counter.exec.setDataWithSlices(
        [(STATE, up), (NEXT, down), (IN, ONE)], counter.spec, [("row", 0), ("column", 0)]
    )
    assert status == S.QS_SUCCESS
    counter.infer(counter.exec)
    assert down.tolist() == [[4], [1]]
    assert counter.exec.setData([(IN, ZERO)]) == S.QS_SUCCESS
    assert counter.state()[0].tolist() == [4] * 4


def test_bindings_without_a_specification_are_set_whole(counter):
    y = np.zeros((3, 4), np.float32)
    status, _ = counter.exec.setDataWithSlices([(Y, y), (IN, ONE)], counter.spec, [])
    assert status == S.QS_SUCCESS
    for expected in (0, 1, 2):
        counter.infer(counter.exec)
        assert y[0, 0] == expected


@pytest.mark.parametrize(
    "array",
    [
        np.broadcast_to(np.float32(6), (2, 3)),
        np.broadcast_to(np.float32([6, 6, 6]), (2, 3)),
        np.full((3, 2), 6, np.float32).T,
        np.full((4, 6), 6, np.float32)[::2, ::2],
        np.full((2, 3), 6, np.float32)[::-1, ::-1],
        np.full((2, 3), 6, np.int32).view(np.float32).view(np.int32).astype(np.float32),
    ],
    ids=["one", "row", "transposed", "strided", "reversed", "plain"],
)
def test_uploads_may_have_any_strides(counter, array):
    frozen = array.view()
    frozen.flags.writeable = False
    counter.window(STATE, frozen, row=1, column=1)
    expected = np.zeros((3, 4))
    expected[1:, 1:] = 6
    np.testing.assert_array_equal(counter.state(), expected)


def test_an_empty_window_changes_nothing(counter):
    counter.window(STATE, np.zeros((0, 4), np.float32), row=3)
    assert not counter.state().any()


@settings(max_examples=60)
@given(data=st.data())
def test_random_windows_do_what_numpy_does(shared, data):
    counter = shared
    model = counter.state()
    for _ in range(data.draw(st.integers(1, 4))):
        row, column = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 3))
        shape = (data.draw(st.integers(1, 3 - row)), data.draw(st.integers(1, 4 - column)))
        values = np.array(data.draw(st.lists(st.integers(-99, 99), min_size=12, max_size=12)), np.float32)
        array = values[: shape[0] * shape[1]].reshape(shape)
        counter.window(STATE, np.asfortranarray(array) if data.draw(st.booleans()) else array, row, column)
        model[row : row + shape[0], column : column + shape[1]] = array
    row, column = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 3))
    down = np.zeros((3 - row, 4 - column), np.float32)
    counter.window(NEXT, down, row, column)
    np.testing.assert_array_equal(counter.state(), model)
    np.testing.assert_array_equal(down, model[row:, column:])


@pytest.fixture(scope="module")
def shared(path):
    return Counter(path)


# --- specifications ------------------------------------------------------------------------------------


def test_names_are_matched_whole(tmp_path):
    names = ["past_key.1", "past_key.10", "past_value.1", "other"]
    edges = [(name, "float32", [2, 2]) for name in names]
    nodes = [helper.make_node("Add", [name, name], [f"{name}_RetainedState"]) for name in names]
    built = session_models.model(
        nodes, edges, [(f"{name}_RetainedState", "float32", [2, 2]) for name in names]
    )
    client = Client(rt_programs.compiled(tmp_path, built, retained_state=True))

    def cut(*patterns):
        specs = [{"Name": name, "ElemSize": 4, "DimSpecs": [{"start": 0}, {"start": 0}]} for name in patterns]
        status, handle = client.program.createSlicingSpecHandle(json.dumps({"BufferSpecs": specs}))
        assert status == S.QS_SUCCESS
        return json.loads(repr(handle).removeprefix("SlicingSpecHandle(").removesuffix(")"))

    assert cut("past_key.1(_.*)?") == ["past_key.1", "past_key.1_RetainedState"]
    assert cut("past_key.*") == [n + s for s in ("", "_RetainedState") for n in ("past_key.1", "past_key.10")]
    assert cut("past") == []
    assert cut() == []
    assert cut("other|past_value.1", "past_value.*") == [
        "past_value.1",
        "other",
        "past_value.1_RetainedState",
    ]


def test_the_first_specification_that_matches_wins(path, capfd):
    text = {
        "BufferSpecs": [
            {"Name": "state", "ElemSize": 4, "DimSpecs": [{"start": 2}, {"start": 0}]},
            {"Name": ".*", "ElemSize": 1, "DimSpecs": []},
        ]
    }
    counter = Counter(path, json.dumps(text))
    status, _ = counter.exec.setDataWithSlices([(STATE, np.ones((1, 4), np.float32))], counter.spec, [])
    assert status == S.QS_SUCCESS
    assert counter.state().sum(axis=1).tolist() == [0, 0, 4]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "BufferSpecs"),
        ('{"BufferSpecs": 5}', "BufferSpecs"),
        ('{"BufferSpecs": [{}]}', "BufferSpecs[0]: a string"),
        ('{"BufferSpecs": [{"Name": "x"}]}', "ElemSize"),
        ('{"BufferSpecs": [{"Name": "x", "ElemSize": -1}]}', "ElemSize"),
        ('{"BufferSpecs": [{"Name": "x", "ElemSize": 4}]}', "DimSpecs"),
        (spec(starts=(-1, 0)), "DimSpecs[0]"),
        (spec(starts=(0, 1.5)), "DimSpecs[1]"),
        (spec(starts=(0, None)), "DimSpecs[1]"),
        (spec(name="(unclosed"), "(unclosed"),
        (spec(name="*"), "regular expression"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_bad_specifications(path, capfd, text, what):
    refused(capfd, Client(path).program.createSlicingSpecHandle(text), "slicing specification", what)


# --- refusals ------------------------------------------------------------------------------------------


def test_windows_that_do_not_fit(counter, capfd):
    full = np.ones((3, 4), np.float32)
    for row, column in ((1, 0), (0, 1), (-1, 0), (2**62, 0), (0, -(2**63)), (2**63 - 1, 0)):
        refused(capfd, counter.slice(STATE, full, row, column), "`state`", "[3, 4]")
        refused(capfd, counter.slice(NEXT, full, row, column), "`state_RetainedState`")
    refused(capfd, counter.slice(STATE, np.ones((4, 1), np.float32)))
    refused(capfd, counter.slice(STATE, np.ones(4, np.float32)), "dims")
    refused(capfd, counter.slice(STATE, np.ones((1, 1, 1), np.float32)), "dims")
    assert not counter.state().any()


def test_elements_of_another_size(counter, path, capfd):
    refused(
        capfd, counter.slice(STATE, np.ones((1, 4), np.float64)), "elements of 4 bytes", "the array has 8"
    )
    refused(capfd, Counter(path, spec(item=2)).slice(STATE, np.ones((1, 4), np.float32)), "specification 2")
    # Only the size is checked.
    counter.window(STATE, np.full((1, 4), 0x3F800000, np.int32))
    assert counter.state()[0].tolist() == [1] * 4


def test_symbols_need_values(counter, capfd):
    array = np.ones((1, 4), np.float32)
    outcome = counter.exec.setDataWithSlices([(STATE, array)], counter.spec, [("row", 0)])
    refused(capfd, outcome, '"column"', '["row"]')
    params = [("column", 0), ("unused", 5), ("row", 2)]
    assert counter.exec.setDataWithSlices([(STATE, array)], counter.spec, params)[0] == S.QS_SUCCESS


def test_downloads_need_writable_memory_in_one_piece(counter, capfd):
    frozen = np.zeros((3, 4), np.float32)
    frozen.flags.writeable = False
    refused(capfd, counter.slice(NEXT, frozen), "read-only")
    refused(capfd, counter.slice(NEXT, np.zeros((4, 3), np.float32).T), "C-contiguous")


def test_only_state_can_be_set_in_part(path, capfd):
    counter = Counter(path, spec(name="x", starts=("row",)))
    refused(capfd, counter.slice(IN, ONE), "`x`", "keeps no state")


def test_a_refused_call_changes_nothing(counter, capfd):
    good, bad = np.ones((1, 4), np.float32), np.ones((9, 9), np.float32)
    params = [("row", 0), ("column", 0)]
    for listed in ([(STATE, good), (NEXT, bad)], [(STATE, good), (17, good)], [(STATE, good), (IN, bad)]):
        refused(capfd, counter.exec.setDataWithSlices(listed, counter.spec, params))
    assert not counter.state().any()


def test_a_handle_of_another_program_is_refused(counter, path, capfd):
    other = Counter(path)
    outcome = counter.exec.setDataWithSlices([(STATE, np.ones((1, 4), np.float32))], other.spec, [])
    refused(capfd, outcome, "another program")
    refused(capfd, counter.exec.setDataWithSlices([], None, []), "None")
    with pytest.raises(TypeError):
        counter.exec.setDataWithSlices([], 5, [])


def test_a_window_of_an_output_that_is_not_retained(path):
    counter = Counter(path, spec(name="y"))
    window = np.zeros((2, 2), np.float32)
    counter.window(Y, window, row=1, column=2)
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    counter.infer(counter.exec, [(STATE, whole)])
    assert window.tolist() == [[6, 7], [10, 11]]
    np.testing.assert_array_equal(counter.y, whole)


class Kept(np.ndarray):
    """An array that supports weak references."""


def test_windows_are_kept_until_they_are_used(counter):
    array = np.ones((3, 4), np.float32).view(Kept)
    alive = weakref.ref(array)
    counter.window(STATE, array)
    del array
    gc.collect()
    assert alive() is not None
    assert counter.state().all()
    assert counter.exec.setData([]) == S.QS_INVAL
    assert alive() is None


def test_handles_cannot_be_made(counter):
    for handle in (counter.spec, counter.window(STATE, np.ones((1, 4), np.float32))):
        with pytest.raises(TypeError):
            type(handle)()
