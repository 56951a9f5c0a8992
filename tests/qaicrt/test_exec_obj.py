"""``ExecObj``: every form of ``setData``, its refusals, and the results."""

import gc
import weakref

import numpy as np
import pytest

import qaicrt
import rt_programs
from rt_programs import Client, S

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def affine(tmp_path_factory):
    return rt_programs.shared(rt_programs.compiled(tmp_path_factory.mktemp("affine"), rt_programs.affine()))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return rt_programs.shared(
        rt_programs.compiled(tmp_path_factory.mktemp("two"), rt_programs.sum_and_difference())
    )


@pytest.fixture(scope="module")
def types(tmp_path_factory):
    return rt_programs.shared(rt_programs.compiled(tmp_path_factory.mktemp("types"), rt_programs.types()))


def refused(capfd, status, *parts, expected=S.QS_INVAL):
    """Assert the status, and that the log contains every part."""
    error = capfd.readouterr().err
    assert status == expected, error
    assert "[ERROR]" in error
    for part in parts:
        assert part in error
    return error


# --- forms -----------------------------------------------------------------------------------------


def test_buffers_with_dims(affine):
    exec_obj = affine.exec_obj()
    buffers = [qaicrt.QBuffer(X.tobytes()), qaicrt.QBuffer(bytes(32))]
    dims = qaicrt.BufferDimensionsVecRef([(4, [2, 4]), (4, [2, 4])])
    affine.infer(exec_obj, buffers, dims)
    status, found = exec_obj.getData()
    assert status == S.QS_SUCCESS
    assert [buffer.size for buffer in found] == [32, 32]
    y = np.frombuffer(bytes(found[1]), np.float32).reshape(dims[1][1])
    np.testing.assert_allclose(y, rt_programs.affine_of(X), rtol=1e-6)
    # A client can read the buffer that it passed.
    assert bytes(buffers[1]) == bytes(found[1])


@pytest.mark.parametrize("wrap", [list, tuple, iter])
def test_buffers_without_dims(affine, wrap):
    exec_obj = affine.exec_obj()
    buffers = [qaicrt.QBuffer(X), qaicrt.QBuffer(bytes(32))]
    affine.infer(exec_obj, wrap(buffers))
    found = np.frombuffer(buffers[1], np.float32).reshape(2, 4)
    np.testing.assert_allclose(found, rt_programs.affine_of(X), rtol=1e-5)


def test_dims_may_be_a_plain_list(affine):
    exec_obj = affine.exec_obj()
    buffers = [qaicrt.QBuffer(X), qaicrt.QBuffer(bytes(32))]
    affine.infer(exec_obj, buffers, [(4, (2, 4)), [np.int64(4), np.array([2, 4])]])


class Vector:
    """A fake with those properties of an ``InferenceVector`` that calls read."""

    def __init__(self, buffers):
        self.buffers = buffers

    def getVector(self):  # noqa: N802 - the name of the interface
        return self.buffers


def test_an_inference_vector_brings_its_buffers(affine):
    exec_obj = affine.exec_obj()
    y = np.zeros((2, 4), np.float32)
    affine.infer(exec_obj, Vector([qaicrt.QBuffer(X), qaicrt.QBuffer(y)]))
    np.testing.assert_allclose(y, rt_programs.affine_of(X), rtol=1e-6)


def test_arrays_are_used_in_place(affine):
    exec_obj = affine.exec_obj()
    x, y = X.copy(), np.zeros((2, 4), np.float32)
    affine.infer(exec_obj, [(1, y), (0, x)])
    np.testing.assert_allclose(y, rt_programs.affine_of(X), rtol=1e-6)
    # The client sets nothing again: the same arrays contain the next inference.
    x += 1
    affine.infer(exec_obj)
    np.testing.assert_allclose(y, rt_programs.affine_of(X + 1), rtol=1e-6)


def test_outputs_may_be_rows_of_a_larger_array(affine):
    exec_obj = affine.exec_obj()
    table = np.zeros((5, 2, 4), np.float32)
    for row in (3, 1):
        affine.infer(exec_obj, [(0, X + row), (1, table[row])])
    for row in range(5):
        expected = rt_programs.affine_of(X + row) if row in (3, 1) else np.zeros((2, 4))
        np.testing.assert_allclose(table[row], expected, rtol=1e-6)


def test_only_listed_bindings_change(two):
    exec_obj = two.exec_obj()
    a, b = np.array([1, 2, 3], np.int32), np.array([10, 20, 30], np.int32)
    total, difference = np.zeros(3, np.int32), np.zeros(3, np.int32)
    two.infer(exec_obj, [(0, a), (1, b), (2, total)])
    assert total.tolist() == [11, 22, 33]
    two.infer(exec_obj, [(3, difference)])
    assert difference.tolist() == [-9, -18, -27]
    two.infer(exec_obj, [(1, np.array([5, 5, 5], np.int32))])
    assert (total.tolist(), difference.tolist()) == ([6, 7, 8], [-4, -3, -2])


def test_a_full_set_replaces_everything(two):
    exec_obj = two.exec_obj()
    total = np.zeros(3, np.int32)
    ones = np.ones(3, np.int32)
    two.infer(exec_obj, [(0, ones), (1, ones), (2, total)])
    buffers = [qaicrt.QBuffer(5 * ones), qaicrt.QBuffer(ones), qaicrt.QBuffer(b""), qaicrt.QBuffer(bytes(12))]
    two.infer(exec_obj, buffers)
    assert total.tolist() == [2, 2, 2]
    assert np.frombuffer(buffers[3], np.int32).tolist() == [4, 4, 4]
    assert [buffer.size for buffer in exec_obj.getData()[1]] == [12, 12, 0, 12]


def test_outputs_that_were_never_set_are_not_produced(two):
    exec_obj = two.exec_obj()
    ones = np.ones(3, np.int32)
    two.infer(exec_obj, [(0, ones), (1, ones)])
    assert [buffer.size for buffer in exec_obj.getData()[1]] == [12, 12, 0, 0]


def test_run_sets_and_waits(affine):
    exec_obj = affine.exec_obj()
    buffers = [qaicrt.QBuffer(X), qaicrt.QBuffer(bytes(32))]
    assert exec_obj.run(buffers) == S.QS_SUCCESS
    np.testing.assert_allclose(
        np.frombuffer(buffers[1], np.float32), rt_programs.affine_of(X).ravel(), rtol=1e-6
    )
    y = np.zeros((2, 4), np.float32)
    assert exec_obj.run([(1, y)]) == S.QS_SUCCESS
    assert exec_obj.run() == S.QS_SUCCESS
    np.testing.assert_allclose(y, rt_programs.affine_of(X), rtol=1e-6)


def test_wait_without_an_inference_succeeds(affine):
    exec_obj = affine.exec_obj()
    assert exec_obj.waitForCompletion() == S.QS_SUCCESS
    affine.infer(exec_obj, [(0, X)])
    assert exec_obj.waitForCompletion() == S.QS_SUCCESS


def test_ids_and_placeholders(affine):
    exec_obj = affine.exec_obj()
    assert exec_obj.getId() == 0
    exec_obj.setId(77)
    assert exec_obj.getId() == 77
    holes = [qaicrt.ExecObj] * 3
    holes[1] = exec_obj
    assert holes[0] is qaicrt.ExecObj


# --- element sizes and dims ----------------------------------------------------------------------------


def test_only_the_size_of_an_element_counts(types):
    exec_obj = types.exec_obj()
    ids = np.zeros(1, np.int64)
    one = np.array([1.0])  # float64 for int64: both have 8 bytes
    half = np.array([[1, 2], [3, 4]], np.uint16)
    flag = np.array([1, 0, 1], np.int8)
    types.infer(exec_obj, [(0, one), (1, half), (2, flag), (3, np.float32(5)), (4, ids)])
    assert ids.view(np.float64)[0] == 1.0


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_scalar_has_no_dim_or_one(types, shape):
    exec_obj = types.exec_obj()
    scalar, out = np.full(shape, 2.5, np.float32), np.zeros(shape, np.float32)
    inputs = [(0, np.zeros(1, np.int64)), (1, np.zeros((2, 2), np.float16)), (2, np.zeros(3, bool))]
    types.infer(exec_obj, [*inputs, (3, scalar), (7, out)])
    assert out.item() == 2.5
    buffers = [qaicrt.QBuffer(np.zeros(size, np.uint8)) for size in (8, 8, 3, 4, 8, 8, 3, 4)]
    sizes = [(8, [1]), (2, [2, 2]), (1, [3]), (4, list(shape))]
    types.infer(exec_obj, buffers, qaicrt.BufferDimensionsVecRef(sizes * 2))


def test_an_empty_buffer_leaves_its_binding_out_whatever_its_element_size(two):
    exec_obj = two.exec_obj()
    ones, empty = np.ones(3, np.int32), np.array([])
    total = np.zeros(3, np.int32)
    dims = [(4, [3]), (4, [3]), (4, [3]), (empty.itemsize, empty.shape)]
    two.infer(exec_obj, [qaicrt.QBuffer(array) for array in (ones, ones, total, empty)], dims)
    assert total.tolist() == [2, 2, 2]
    two.infer(exec_obj, [(2, empty)])
    assert exec_obj.getData()[1][2].size == 0


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((4, 2), np.float32),
        np.zeros(8, np.float32),
        np.zeros((2, 2), np.float64),
        np.zeros(32, np.uint8),
    ],
)
def test_other_dims_of_the_right_size_fail_late(affine, capfd, array):
    exec_obj = affine.exec_obj()
    assert exec_obj.setData([(0, array)]) == S.QS_SUCCESS
    assert affine.queue.enqueue(exec_obj) == S.QS_SUCCESS
    status = exec_obj.waitForCompletion()
    refused(capfd, status, "No matching dimension found", f"{list(array.shape)}", "[2, 4]")
    refused(capfd, exec_obj.run(), "No matching dimension found")
    # Correct dims fix the error.
    affine.infer(exec_obj, [(0, X)])


# --- refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 3])
def test_wrong_number_of_buffers(affine, capfd, count):
    exec_obj = affine.exec_obj()
    status = exec_obj.setData([qaicrt.QBuffer(bytes(32))] * count)
    found = "1 buffer" if count == 1 else f"{count} buffers"
    refused(capfd, status, f"found {found}, expected 2: 1 input, then 1 output")


def test_wrong_number_of_dims(affine, capfd):
    status = affine.exec_obj().setData([qaicrt.QBuffer(bytes(32)), qaicrt.QBuffer(bytes(32))], [(4, [2, 4])])
    refused(capfd, status, "found element sizes and dims for 1 binding, expected 2")


@pytest.mark.parametrize("size", [1, 28, 31, 33, 64])
def test_wrong_sizes(affine, capfd, size):
    exec_obj = affine.exec_obj()
    good = qaicrt.QBuffer(bytes(32))
    for buffers in ([qaicrt.QBuffer(bytes(size)), good], [good, qaicrt.QBuffer(bytes(size))]):
        refused(capfd, exec_obj.setData(buffers), f"{size} bytes given", "32 expected")
    refused(capfd, exec_obj.setData([(0, np.zeros(size, np.uint8))]), "`x`", "32 expected")


def test_size_and_dims_must_agree(affine, capfd):
    exec_obj = affine.exec_obj()
    buffers = [qaicrt.QBuffer(bytes(32)), qaicrt.QBuffer(bytes(32))]
    for dims in ((4, [2, 5]), (8, [2, 4]), (4, [2**40, 2**40])):
        refused(capfd, exec_obj.setData(buffers, [dims, (4, [2, 4])]), "`x`", "both must give the same size")
    empty = [qaicrt.QBuffer(b""), buffers[1]]
    refused(capfd, exec_obj.setData(empty, [(4, [2, 4]), (4, [2, 4])]), "`x`", "0 bytes given")


@pytest.mark.parametrize("index", [2, -1, 2**40])
def test_unknown_bindings(affine, capfd, index):
    refused(
        capfd,
        affine.exec_obj().setData([(index, X)]),
        f"binding {index} does not exist",
        "has 2, numbered from 0",
    )


def test_a_refused_call_changes_nothing(two, capfd):
    exec_obj = two.exec_obj()
    a, b, total = np.ones(3, np.int32), np.ones(3, np.int32), np.zeros(3, np.int32)
    two.infer(exec_obj, [(0, a), (1, b), (2, total)])
    other = np.full(3, 50, np.int32)
    refused(capfd, exec_obj.setData([(0, other), (1, np.zeros(2, np.int32))]), "`b`")
    refused(capfd, exec_obj.setData([qaicrt.QBuffer(other)] * 3))
    refused(capfd, exec_obj.setData([(0, other), (9, other)]))
    two.infer(exec_obj)
    assert total.tolist() == [2, 2, 2]


def test_inputs_must_be_set(two, capfd):
    exec_obj = two.exec_obj()
    assert exec_obj.setData([(0, np.ones(3, np.int32))]) == S.QS_SUCCESS
    refused(capfd, two.queue.enqueue(exec_obj), "`b`")
    assert exec_obj.waitForCompletion() == S.QS_SUCCESS
    refused(capfd, exec_obj.run(), "`b`")


def test_outputs_need_writable_memory_in_one_piece(affine, capfd):
    exec_obj = affine.exec_obj()
    frozen = np.zeros((2, 4), np.float32)
    frozen.flags.writeable = False
    refused(capfd, exec_obj.setData([(1, frozen)]), "`y`", "read-only")
    refused(capfd, exec_obj.setData([qaicrt.QBuffer(X), qaicrt.QBuffer(frozen)]), "`y`", "read-only")
    refused(capfd, exec_obj.setData([(1, np.zeros((4, 2), np.float32).T)]), "`y`", "C-contiguous")
    refused(capfd, exec_obj.setData([(1, b"\0" * 32)]), "`y`", "read-only")


def test_read_only_inputs_are_welcome(affine):
    exec_obj = affine.exec_obj()
    frozen, y = X.copy(), np.zeros((2, 4), np.float32)
    frozen.flags.writeable = False
    affine.infer(exec_obj, [(0, frozen), (1, y)])
    np.testing.assert_allclose(y, rt_programs.affine_of(X), rtol=1e-6)


@pytest.mark.parametrize(
    "array",
    [
        np.broadcast_to(np.float32([1, 2, 3, 4]), (2, 4)),
        np.asfortranarray(X),
        np.arange(32, dtype=np.float32).reshape(4, 8)[::2, 1::2],
        X[::-1, ::-1],
    ],
    ids=["broadcast", "fortran", "strided", "reversed"],
)
def test_inputs_may_have_any_strides(affine, array):
    exec_obj = affine.exec_obj()
    y = np.zeros((2, 4), np.float32)
    affine.infer(exec_obj, [(0, array), (1, y)])
    np.testing.assert_allclose(y, rt_programs.affine_of(np.ascontiguousarray(array)), rtol=1e-6)


def test_memory_may_lie_anywhere(affine):
    exec_obj = affine.exec_obj()
    for offset in (1, 2, 3):
        raw = np.zeros(80, np.uint8)
        x = raw[offset : offset + 32].view(np.float32).reshape(2, 4)
        y = raw[offset + 36 : offset + 68].view(np.float32).reshape(2, 4)
        x[:] = X + offset
        affine.infer(exec_obj, [(0, x), (1, y)])
        np.testing.assert_allclose(y, rt_programs.affine_of(X + offset), rtol=1e-6)
        assert raw[offset + 32 : offset + 36].tolist() == [0] * 4


def test_an_array_may_be_input_and_output(two):
    exec_obj = two.exec_obj()
    a, b = np.array([1, 2, 3], np.int32), np.array([10, 20, 30], np.int32)
    two.infer(exec_obj, [(0, a), (1, b), (2, a), (3, b)])
    assert (a.tolist(), b.tolist()) == ([11, 22, 33], [-9, -18, -27])
    wide = np.arange(4, dtype=np.int32)
    two.infer(exec_obj, [(0, wide[:3]), (1, wide[1:]), (2, wide[:3]), (3, np.zeros(3, np.int32))])
    assert wide.tolist() == [1, 3, 5, 3]


def test_outputs_that_share_memory_are_refused(two, capfd):
    exec_obj = two.exec_obj()
    ones, both, wide = np.ones(3, np.int32), np.zeros(3, np.int32), np.zeros(5, np.int32)
    refused(capfd, exec_obj.setData([(2, both), (3, both)]), "`sum`", "`diff`", "share memory")
    refused(capfd, exec_obj.setData([(2, wide[:3]), (3, wide[2:])]), "share memory")
    shared = qaicrt.QBuffer(bytes(12))
    refused(
        capfd, exec_obj.setData([qaicrt.QBuffer(ones), qaicrt.QBuffer(ones), shared, shared]), "share memory"
    )
    # Earlier settings apply unless they are replaced.
    assert exec_obj.setData([(0, ones), (1, ones), (2, both)]) == S.QS_SUCCESS
    refused(capfd, exec_obj.setData([(3, both)]), "share memory")
    two.infer(exec_obj, [(3, both), (2, wide[:3])])
    assert (both.tolist(), wide.tolist()) == ([0, 0, 0], [2, 2, 2, 0, 0])


def test_only_heap_memory_works(affine, capfd):
    buffer = qaicrt.QBuffer(bytes(32))
    buffer.type = qaicrt.QBufferType.QBUFFER_TYPE_DMABUF
    exec_obj = affine.exec_obj()
    for data in ([qaicrt.QBuffer(X), buffer], [(1, buffer)]):
        refused(capfd, exec_obj.setData(data), "QBUFFER_TYPE_HEAP", expected=S.QS_UNSUPPORTED)


@pytest.mark.parametrize("device", ["cpu", "noop"])
def test_only_cards_take_descriptors(tmp_path, monkeypatch, capfd, device):
    monkeypatch.setenv("QAIC_DEVICE", device)
    client = Client(rt_programs.compiled(tmp_path, rt_programs.affine()))
    with (tmp_path / "memory").open("w+b") as file:
        file.truncate(32)
        buffer = qaicrt.QBuffer.from_dma_buf(file, 32)
    exec_obj = client.exec_obj()
    for data in ([qaicrt.QBuffer(X), buffer], [(1, buffer)]):
        status = exec_obj.setData(data)
        refused(capfd, status, "QBUFFER_TYPE_DMABUF", f"`{device}`", expected=S.QS_UNSUPPORTED)
    buffer.type = qaicrt.QBufferType.QBUFFER_TYPE_HEAP
    refused(capfd, exec_obj.setData([(1, buffer)]), "from_dma_buf", expected=S.QS_UNSUPPORTED)


@pytest.mark.parametrize(
    "data",
    [
        5,
        None,
        "text",
        [5],
        [None],
        [np.zeros(3)],
        [(0,)],
        [(0, 1, 2)],
        [("x", X)],
        [(0, 5)],
        [(0, [1.0])],
        [(0, None)],
    ],
)
def test_what_is_no_list_of_buffers_or_arrays(affine, data):
    with pytest.raises(TypeError):
        affine.exec_obj().setData(data)


def test_dims_go_with_buffers_only(affine, capfd):
    refused(capfd, affine.exec_obj().setData([(0, X)], [(4, [2, 4])]), "dims apply only to a list of buffers")


# --- lifetime ------------------------------------------------------------------------------------------


class Kept(np.ndarray):
    """An array that supports weak references."""


def test_arrays_are_kept_until_they_are_replaced(affine):
    exec_obj = affine.exec_obj()
    arrays = [X.copy().view(Kept), np.zeros((2, 4), np.float32).view(Kept)]
    alive = [weakref.ref(array) for array in arrays]
    affine.infer(exec_obj, list(enumerate(arrays)))
    del arrays
    gc.collect()
    affine.infer(exec_obj)
    assert [reference() is not None for reference in alive] == [True, True]
    assert exec_obj.setData([(0, X)]) == S.QS_SUCCESS
    assert [reference() is not None for reference in alive] == [False, True]
    del exec_obj
    assert alive[1]() is None


def test_what_get_data_gives_outlives_everything(tmp_path):
    client = Client(rt_programs.compiled(tmp_path, rt_programs.affine()))
    exec_obj = client.exec_obj()
    client.infer(exec_obj, [qaicrt.QBuffer(X.tobytes()), qaicrt.QBuffer(bytes(32))])
    view = np.frombuffer(exec_obj.getData()[1][1], np.float32)
    del exec_obj, client
    gc.collect()
    np.testing.assert_allclose(view, rt_programs.affine_of(X).ravel(), rtol=1e-6)


def test_thousands_of_arrays_are_all_given_back(affine):
    exec_obj = affine.exec_obj()
    alive = []
    for index in range(2000):
        array = (X + index).view(Kept)
        alive.append(weakref.ref(array))
        assert exec_obj.setData([(0, array), (1, np.zeros((2, 4), np.float32))]) == S.QS_SUCCESS
    del array
    assert sum(reference() is not None for reference in alive) == 1


@pytest.mark.parametrize("arguments", [(None, None), (None, "program"), ("context", None)])
def test_parents_are_needed(affine, arguments):
    given = {"context": affine.context, "program": affine.program}
    with pytest.raises(qaicrt.ExceptionNullPtr, match="Null Pointer Exception: in object: ExecObj"):
        qaicrt.ExecObj(*(given.get(name) for name in arguments))


def test_properties(affine, tmp_path):
    assert qaicrt.ExecObj(affine.context, affine.program, 4).getId() == 0
    with pytest.raises(qaicrt.ExceptionInit, match="properties are 3"):
        qaicrt.ExecObj(affine.context, affine.program, 3)
    idle = Client(rt_programs.compiled(tmp_path, rt_programs.affine()))
    with pytest.raises(qaicrt.ExceptionInit, match="not activated"):
        qaicrt.ExecObj(idle.context, idle.program, 0)
    assert not idle.program.isActivated()
    assert idle.program.activate() == S.QS_SUCCESS
    qaicrt.ExecObj(idle.context, idle.program, 0)


def test_another_context_is_refused(affine):
    with pytest.raises(qaicrt.ExceptionInit, match="another context"):
        qaicrt.ExecObj(qaicrt.Context(), affine.program)


def test_the_classes_are_of_qaicrt():
    for cls in (qaicrt.ExecObj, qaicrt.Program, qaicrt.Queue, qaicrt.QBuffer, qaicrt.BufferDimensionsVecRef):
        assert cls.__module__ == "qaicrt"
        assert getattr(qaicrt, cls.__name__) is cls


@pytest.mark.parametrize("index", [-1, 2, 2**63, 2**64, -(2**64)])
def test_an_index_of_any_size_is_refused_with_a_status(affine, capfd, index):
    refused(capfd, affine.exec_obj().setData([(index, X)]), "binding")
