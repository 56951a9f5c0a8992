"""``QBuffer``: the owner of its memory, and what keeps it alive."""

import gc
import mmap
import os
import weakref
from array import array

import numpy as np
import pytest

import qaicrt


def test_bytes_are_copied():
    data = bytes(range(200))
    buffer = qaicrt.QBuffer(data)
    view = np.frombuffer(buffer, np.uint8)
    view[:] = 7
    assert data == bytes(range(200))
    assert bytes(buffer) == bytes([7]) * 200
    assert buffer.size == 200


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65_535, 65_536, 1_000_003])
def test_every_size_comes_back(size):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    buffer = qaicrt.QBuffer(data)
    assert (buffer.size, bytes(buffer), memoryview(buffer).nbytes) == (size, data, size)
    assert buffer.buf % 64 == 0


def test_arrays_are_referred_to():
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    buffer = qaicrt.QBuffer(data)
    assert (buffer.size, buffer.buf) == (48, data.ctypes.data)
    data[1, 2] = -5
    assert np.frombuffer(buffer, np.float32)[6] == -5
    np.frombuffer(buffer, np.float32)[0] = 9
    assert data[0, 0] == 9


@pytest.mark.parametrize("make", [bytearray, lambda data: array("B", data), memoryview])
def test_other_buffers_are_referred_to(make):
    owner = make(bytearray(b"abc"))
    buffer = qaicrt.QBuffer(owner)
    np.frombuffer(buffer, np.uint8)[1] = ord("X")
    assert bytes(owner) == b"aXc"


def test_rows_scalars_and_types_without_a_format():
    table = np.zeros((4, 8), np.int16)
    assert qaicrt.QBuffer(table[2]).buf == table[2].ctypes.data
    assert qaicrt.QBuffer(np.array(5.0)).size == 8
    # The buffer protocol has no format for `datetime64`; only the bytes count.
    assert qaicrt.QBuffer(np.zeros(3, "V5")).size == 15


def test_empty_buffers():
    for empty in (b"", bytearray(), np.array([]), np.zeros((0, 3), np.int8), np.zeros((4, 6))[:, :0]):
        buffer = qaicrt.QBuffer(empty)
        assert (buffer.size, bytes(buffer)) == (0, b"")
    assert qaicrt.QBuffer().size == 0


def test_scattered_arrays_are_refused():
    table = np.zeros((4, 8), np.float32)
    for scattered in (
        table.T,
        table[:, 1:],
        table[::2],
        np.broadcast_to(np.float32(1), (3, 3)),
        table[0][::-1],
    ):
        with pytest.raises(ValueError, match="ascontiguousarray"):
            qaicrt.QBuffer(scattered)


@pytest.mark.parametrize("value", [5, "text", [1, 2], object()])
def test_what_has_no_buffer_is_refused(value):
    with pytest.raises(TypeError, match=f"not {type(value).__name__}"):
        qaicrt.QBuffer(value)


def test_read_only_memory_stays_read_only():
    data = np.zeros(4, np.uint8)
    data.flags.writeable = False
    view = memoryview(qaicrt.QBuffer(data))
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 1


def test_a_view_keeps_the_memory():
    view = np.frombuffer(qaicrt.QBuffer(b"\x05" * 4096), np.uint8)
    gc.collect()
    assert set(view.tolist()) == {5}


def test_the_array_lives_as_long_as_the_buffer():
    class Owner(np.ndarray):
        pass

    data = np.zeros(8, np.uint8).view(Owner)
    alive = weakref.ref(data)
    buffer = qaicrt.QBuffer(data)
    view = memoryview(buffer)
    del data
    assert alive() is not None
    del buffer
    assert alive() is not None
    del view
    assert alive() is None


def test_memory_that_could_move_is_held_in_place():
    owner = bytearray(b"abc")
    buffer = qaicrt.QBuffer(owner)
    with pytest.raises(BufferError):
        owner.extend(b"more")
    del buffer
    owner.extend(b"more")
    with mmap.mmap(-1, 4096) as mapped:
        buffer = qaicrt.QBuffer(mapped)
        with pytest.raises(BufferError):
            mapped.close()
        del buffer


def test_attributes():
    buffer = qaicrt.QBuffer(b"1234")
    assert (buffer.offset, buffer.handle) == (0, 0)
    assert buffer.type is qaicrt.QBufferType.QBUFFER_TYPE_HEAP
    buffer.type = qaicrt.QBufferType.QBUFFER_TYPE_DMABUF
    assert buffer.type is qaicrt.QBufferType.QBUFFER_TYPE_DMABUF
    assert repr(buffer) == "QBuffer(4 bytes)"
    for name in ("size", "buf", "offset", "handle", "surprise"):
        with pytest.raises(AttributeError):
            setattr(buffer, name, 1)
    assert (type(buffer).__module__, type(buffer).__name__) == ("qaicrt", "QBuffer")


class TestDescriptors:
    """Memory behind a descriptor, whose contents are not visible."""

    @pytest.fixture
    def memory(self):
        fd = os.memfd_create("tensor")
        os.truncate(fd, 4096)
        yield fd
        os.close(fd)

    def test_attributes_are_those_of_the_interface(self, memory):
        buffer = qaicrt.QBuffer.from_dma_buf(memory, 1000, offset=24)
        assert (buffer.size, buffer.offset, buffer.buf) == (1000, 24, 0)
        assert buffer.type is qaicrt.QBufferType.QBUFFER_TYPE_DMABUF
        assert os.fstat(buffer.handle).st_ino == os.fstat(memory).st_ino
        assert repr(buffer) == f"QBuffer(dma-buf {buffer.handle}, 1000 bytes from 24)"
        assert (qaicrt.QBuffer(b"x").handle, qaicrt.QBuffer(b"x").offset) == (0, 0)

    def test_the_descriptor_is_its_own(self, tmp_path):
        with (tmp_path / "memory").open("w+b") as file:
            file.truncate(64)
            buffer = qaicrt.QBuffer.from_dma_buf(file, 64)
        handle = buffer.handle
        assert os.fstat(handle).st_size == 64
        assert not os.get_inheritable(handle)
        del buffer
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(handle)

    def test_the_host_does_not_see_it(self, memory):
        buffer = qaicrt.QBuffer.from_dma_buf(memory, 8)
        with pytest.raises(BufferError, match="handle with mmap"):
            memoryview(buffer)
        with pytest.raises(BufferError):
            bytes(buffer)

    @pytest.mark.parametrize(("size", "offset"), [(0, 0), (4097, 0), (4096, 1), (1, 4096), (1 << 63, 9)])
    def test_bytes_that_do_not_exist(self, memory, size, offset):
        with pytest.raises(ValueError, match="bytes"):
            qaicrt.QBuffer.from_dma_buf(memory, size, offset)

    @pytest.mark.parametrize("size", [-1, 1 << 64])
    def test_numbers_that_are_no_sizes(self, memory, size):
        with pytest.raises(OverflowError):
            qaicrt.QBuffer.from_dma_buf(memory, size)

    def test_what_is_no_descriptor(self):
        with pytest.raises(OSError, match="Bad file descriptor"):
            qaicrt.QBuffer.from_dma_buf(1 << 20, 8)
        with pytest.raises(TypeError):
            qaicrt.QBuffer.from_dma_buf("memory", 8)
