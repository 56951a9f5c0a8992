"""``BufferDimensionsVecRef``, as clients use it."""

import numpy as np
import pytest

import qaicrt


def dims():
    return qaicrt.BufferDimensionsVecRef([(8, [1, 32]), (4, (2, 3, 4)), (2, [])])


def test_reads_back_as_lists():
    assert list(dims()) == [(8, [1, 32]), (4, [2, 3, 4]), (2, [])]
    assert all(type(entry[1]) is list for entry in dims())
    assert dims()[1] == (4, [2, 3, 4])
    assert dims()[-1] == (2, [])
    assert dims()[-3] == (8, [1, 32])
    assert len(dims()) == 3


def test_what_clients_do():
    entries = dims()
    entries[0] = (np.array([]).itemsize, np.array([]).shape)
    assert entries[0][1] == [0]
    assert entries[1][1][0] == 2
    assert np.zeros(24).reshape(entries[1][1]).shape == (2, 3, 4)
    for size, shape in entries:
        assert size in (8, 4, 2)
        assert isinstance(shape, list)
    assert [name for name, (_, shape) in zip("abc", entries, strict=True) if shape == [0]] == ["a"]


def test_any_sequence_of_numbers_is_taken():
    entries = dims()
    for given in ([7, 8], (7, 8), np.array([7, 8]), range(7, 9), (np.int32(7), np.int64(8))):
        entries[1] = (np.int64(4), given)
        assert entries[1] == (4, [7, 8])
    entries[1] = [4, [5]]
    assert entries[1] == (4, [5])
    entries[-1] = (1, [9])
    assert entries[2] == (1, [9])


def test_grows_and_compares():
    entries = qaicrt.BufferDimensionsVecRef()
    assert len(entries) == 0
    for entry in dims():
        entries.append(entry)
    assert entries == dims()
    assert entries == [(8, [1, 32]), (4, [2, 3, 4]), (2, [])]
    assert entries != [(8, [1, 32])]
    assert entries != 5
    assert qaicrt.BufferDimensionsVecRef(entries) == entries


def test_the_change_of_a_copy_is_not_seen():
    entries = dims()
    entries[0][1].append(5)
    copy = qaicrt.BufferDimensionsVecRef(entries)
    copy[0] = (1, [1])
    assert entries[0] == (8, [1, 32])


@pytest.mark.parametrize("index", [3, -4, 2**40])
def test_indices_out_of_range(index):
    entries = dims()
    with pytest.raises(IndexError):
        _ = entries[index]
    with pytest.raises(IndexError):
        entries[index] = (1, [1])
    assert entries == dims()


@pytest.mark.parametrize(
    "value", [5, (4,), (4, [1], 2), ("a", [1]), (4, ["a"]), (4, 5), (4, [1.5]), (-4, [1]), (2**65, [1]), None]
)
def test_what_is_no_pair_is_refused(value):
    entries = dims()
    with pytest.raises(TypeError, match="pair of element size and dims"):
        entries[0] = value
    with pytest.raises(TypeError, match="pair of element size and dims"):
        qaicrt.BufferDimensionsVecRef([value])
    assert entries == dims()


def test_negative_dims_are_refused():
    with pytest.raises(ValueError, match="negative"):
        qaicrt.BufferDimensionsVecRef([(4, [2, -1])])


def test_repr():
    assert repr(dims()) == "BufferDimensionsVecRef([(8, [1, 32]), (4, [2, 3, 4]), (2, [])])"
