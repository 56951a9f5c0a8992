"""Several combinations of shapes, and partial buffers, at ``ExecObj``."""

from pathlib import Path

import numpy as np
import pytest

import qaicrt
import rt_programs
from rt_programs import ROWS, Client, S

DATA = Path(__file__).parents[1] / "data" / "qpc"


@pytest.fixture(scope="module")
def doubled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("doubled")
    return rt_programs.shared(
        rt_programs.compiled(folder, rt_programs.doubled(), network_specialization_config=ROWS)
    )


def rows(count, seed=0):
    return np.random.default_rng(seed).random((count, 4), np.float32)


def test_arrays_choose_the_shapes(doubled):
    exec_obj = doubled.exec_obj()
    for count in (1, 8, 3, 3, 1):
        x, y = rows(count), np.zeros((count, 4), np.float32)
        doubled.infer(exec_obj, [(0, x), (1, y)])
        np.testing.assert_array_equal(y, x + x)


def test_dims_choose_the_shapes(doubled):
    exec_obj = doubled.exec_obj()
    for count in (3, 8, 1):
        x = rows(count)
        buffers = [qaicrt.QBuffer(x.tobytes()), qaicrt.QBuffer(bytes(x.nbytes))]
        doubled.infer(exec_obj, buffers, qaicrt.BufferDimensionsVecRef([(4, x.shape), (4, [count, 4])]))
        found = np.frombuffer(exec_obj.getData()[1][1], np.float32).reshape(count, 4)
        np.testing.assert_array_equal(found, x + x)


def test_sizes_choose_the_shapes_when_there_are_no_dims(doubled):
    exec_obj = doubled.exec_obj()
    for count in (8, 1, 3):
        x = rows(count)
        buffers = [qaicrt.QBuffer(x), qaicrt.QBuffer(bytes(x.nbytes))]
        doubled.infer(exec_obj, buffers)
        np.testing.assert_array_equal(np.frombuffer(buffers[1], np.float32).reshape(count, 4), x + x)
        # An array that is set later is combined with the known shapes of the other.
        y = np.zeros((count, 4), np.float32)
        doubled.infer(exec_obj, [(1, y)])
        np.testing.assert_array_equal(y, x + x)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_an_output_for_the_largest_shape_is_taken_and_its_head_is_written(doubled, count):
    x, doubles = rows(count), rows(count) * 2

    def check(y):
        found = np.frombuffer(y, np.float32).reshape(8, 4)
        np.testing.assert_array_equal(found[:count], doubles)
        np.testing.assert_array_equal(found[count:], np.full((8 - count, 4), 7, np.float32))

    def largest():
        return np.full((8, 4), 7, np.float32)

    exec_obj = doubled.exec_obj()
    doubled.infer(exec_obj, [(0, x), (1, y := largest())])
    check(y)
    dims = qaicrt.BufferDimensionsVecRef([(4, x.shape), (4, [8, 4])])
    doubled.infer(exec_obj, [qaicrt.QBuffer(x.tobytes()), qaicrt.QBuffer(largest().tobytes())], dims)
    check(bytes(exec_obj.getData()[1][1]))
    doubled.infer(exec_obj, [qaicrt.QBuffer(x), qaicrt.QBuffer(y := largest())])
    check(y)
    # Then only the inputs change.
    doubled.infer(exec_obj, [(0, np.zeros((1, 4), np.float32))])
    assert not y[0].any()
    np.testing.assert_array_equal(y[1:count], doubles[1:])


def test_an_output_beyond_the_largest_shape_is_refused(doubled, capfd):
    exec_obj = doubled.exec_obj()
    assert exec_obj.setData([(0, rows(8)), (1, np.zeros((9, 4), np.float32))]) == S.QS_INVAL
    assert "144" in capfd.readouterr().err


def test_an_output_that_is_left_out_fits_every_combination(doubled):
    exec_obj = doubled.exec_obj()
    for count in (1, 8, 3):
        doubled.infer(exec_obj, [(0, rows(count))])
        doubled.infer(exec_obj, [qaicrt.QBuffer(rows(count)), qaicrt.QBuffer(b"")])


@pytest.mark.parametrize(("given", "taken"), [((8, 3), "[8, 4]"), ((8, 1), "[8, 4]"), ((3, 1), "[3, 4]")])
def test_shapes_of_different_combinations_fail_late(doubled, capfd, given, taken):
    exec_obj = doubled.exec_obj()
    x, y = rows(given[0]), np.zeros((given[1], 4), np.float32)
    assert exec_obj.setData([(0, x), (1, y)]) == S.QS_SUCCESS
    assert doubled.queue.enqueue(exec_obj) == S.QS_SUCCESS
    assert exec_obj.waitForCompletion() == S.QS_INVAL
    error = capfd.readouterr().err
    assert "[ERROR]" in error
    assert "No matching dimension found" in error
    passed, *allowed = error.split("allowed")
    assert taken in passed
    assert ["[8, 4]" in allowed[0], "[3, 4]" in allowed[1], "[1, 4]" in allowed[2]] == [True] * 3
    assert not y.any()


@pytest.mark.parametrize("count", [2, 7])
def test_dims_that_no_combination_has_fail_late(doubled, capfd, count):
    exec_obj = doubled.exec_obj()
    x, y = rows(count), np.zeros((count, 4), np.float32)
    buffers, dims = [qaicrt.QBuffer(x), qaicrt.QBuffer(y)], [(4, x.shape), (4, y.shape)]
    for data in ([[(0, x)]], [[(0, x), (1, y)]], [buffers, dims]):
        assert exec_obj.setData(*data) == S.QS_SUCCESS
        assert doubled.queue.enqueue(exec_obj) == S.QS_SUCCESS
        for end in (exec_obj.waitForCompletion, exec_obj.run):
            assert end() == S.QS_INVAL
            error = capfd.readouterr().err
            assert "No matching dimension found" in error
            passed, *allowed = error.split("allowed")
            assert f"[{count}, 4]" in passed
            assert len(allowed) == 3
    assert not y.any()
    # Correct dims fix the error.
    y = np.zeros((3, 4), np.float32)
    doubled.infer(exec_obj, [(0, rows(3)), (1, y)])
    np.testing.assert_array_equal(y, 2 * rows(3))


def test_sizes_that_no_combination_has_are_refused_at_once(doubled, capfd):
    exec_obj = doubled.exec_obj()
    too_large = rows(9)
    without_dims = [[qaicrt.QBuffer(rows(count)), qaicrt.QBuffer(b"")] for count in (2, 7, 9)]
    listed = [[(0, qaicrt.QBuffer(rows(2)))], [(0, too_large)]]
    for data in (*without_dims, *listed):
        assert exec_obj.setData(data) == S.QS_INVAL
        assert "128 expected" in capfd.readouterr().err
    # Dims whose size differs from that of the buffer.
    assert (
        exec_obj.setData([qaicrt.QBuffer(rows(2)), qaicrt.QBuffer(b"")], [(4, [3, 4]), (4, [0])])
        == S.QS_INVAL
    )
    assert "both must give the same size" in capfd.readouterr().err


def test_shapes_of_buffers_that_do_not_go_together(doubled, capfd):
    exec_obj = doubled.exec_obj()
    assert exec_obj.setData([qaicrt.QBuffer(rows(8)), qaicrt.QBuffer(rows(3))]) == S.QS_SUCCESS
    assert exec_obj.run() == S.QS_INVAL
    assert "No matching dimension found" in capfd.readouterr().err


def test_listed_buffers_have_the_shapes_of_their_sizes(doubled, capfd):
    exec_obj = doubled.exec_obj()
    y = np.zeros((3, 4), np.float32)
    doubled.infer(exec_obj, [(0, qaicrt.QBuffer(rows(3))), (1, y)])
    np.testing.assert_array_equal(y, 2 * rows(3))
    # Three rows must not be read as one row and unused data.
    y = np.zeros((1, 4), np.float32)
    assert exec_obj.setData([(0, qaicrt.QBuffer(rows(3))), (1, y)]) == S.QS_SUCCESS
    assert exec_obj.run() == S.QS_INVAL
    assert "No matching dimension found" in capfd.readouterr().err
    assert not y.any()


def test_partial_inputs_may_be_short(monkeypatch, capfd):
    monkeypatch.setenv("QAIC_DEVICE", "noop")
    client = Client(str(DATA / "s07_partial_multi.qpc"))
    mappings = client.program.getBufferMappings()
    partial = [mapping.isPartialBufferAllowed for mapping in mappings]
    assert any(partial)
    exec_obj = client.exec_obj()
    for mapping in mappings:
        sizes = [other.size for other in mappings]
        sizes[mapping.index] //= 2
        status = exec_obj.setData([qaicrt.QBuffer(bytes(size)) for size in sizes])
        assert status == (S.QS_SUCCESS if mapping.isPartialBufferAllowed else S.QS_INVAL)
        if mapping.isPartialBufferAllowed:
            client.infer(exec_obj)
        else:
            assert mapping.bufferName in capfd.readouterr().err
        sizes[mapping.index] = mapping.size + 4
        assert exec_obj.setData([qaicrt.QBuffer(bytes(size)) for size in sizes]) == S.QS_INVAL
    short = [(m.index, np.zeros(m.size // 2, np.uint8)) for m in mappings if m.isPartialBufferAllowed]
    whole = [(m.index, np.zeros(m.size, np.uint8)) for m in mappings if not m.isPartialBufferAllowed]
    assert exec_obj.setData(short) == S.QS_SUCCESS
    assert len(whole) + len(short) == len(mappings)


def test_containers_with_allowed_shapes_are_matched(monkeypatch, capfd):
    monkeypatch.setenv("QAIC_DEVICE", "noop")
    client = Client(str(DATA / "s08_dynamic_shapes.qpc"))
    entries = [mapping.allowedDimensions for mapping in qaicrt.Qpc(client.path).getBufferMappingsV2()]
    types = [
        (mapping.size // int(np.prod(mapping.defaultDimensions)))
        for mapping in qaicrt.Qpc(client.path).getBufferMappingsV2()
    ]
    exec_obj = client.exec_obj()
    for variant in range(len(entries[0])):
        dims = [(item, allowed[variant]) for item, allowed in zip(types, entries, strict=True)]
        buffers = [qaicrt.QBuffer(bytes(item * int(np.prod(shape)))) for item, shape in dims]
        client.infer(exec_obj, buffers, dims)
    mixed = [
        (item, allowed[index % 2]) for index, (item, allowed) in enumerate(zip(types, entries, strict=True))
    ]
    buffers = [qaicrt.QBuffer(bytes(item * int(np.prod(shape)))) for item, shape in mixed]
    assert exec_obj.setData(buffers, mixed) == S.QS_SUCCESS
    assert exec_obj.run() == S.QS_INVAL
    assert "No matching dimension found" in capfd.readouterr().err
