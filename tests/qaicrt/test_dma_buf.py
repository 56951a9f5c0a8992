"""Bindings behind file descriptors, which an emulated card reads and writes itself."""

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

import qaicrt
import rt_programs
from qaic import _core
from rt_programs import Client, S

X = np.arange(8, dtype=np.float32).reshape(2, 4)
PAGE = mmap.PAGESIZE
#: Size of the DMA buffers of both bindings; the tensors are at the beginning of the buffers.
BYTES = 64


@pytest.fixture(autouse=True)
def cards(monkeypatch):
    monkeypatch.setenv("QAIC_DEVICE", "kmd")
    monkeypatch.setenv("QAIC_KMD", "emu")


@pytest.fixture
def affine(tmp_path):
    return Client(rt_programs.compiled(tmp_path, rt_programs.affine()))


class Memory:
    """Shared memory behind a descriptor, as the host sees it."""

    def __init__(self, size=PAGE):
        self.fd = os.memfd_create("tensor")
        os.truncate(self.fd, size)
        self.view = np.frombuffer(mmap.mmap(self.fd, size), np.float32)

    def buffer(self, size=BYTES, offset=0):
        return qaicrt.QBuffer.from_dma_buf(self.fd, size, offset)

    def put(self, values, offset=0):
        self.view[offset // 4 :][: values.size] = values.reshape(-1)

    def get(self, offset=0):
        return self.view[offset // 4 :][: X.size].reshape(X.shape)


def refused(capfd, status, *words, expected=S.QS_INVAL):
    error = capfd.readouterr().err
    assert status == expected, error
    for word in words:
        assert word in error


def test_an_inference_without_a_copy(affine):
    exec_obj, x, y = affine.exec_obj(), Memory(), Memory()
    for turn in range(3):
        x.put(X + turn)
        # Clients set the buffers once, or for every inference.
        affine.infer(exec_obj, *([[x.buffer(), y.buffer()]] if turn != 1 else []))
        np.testing.assert_allclose(y.get(), rt_programs.affine_of(X + turn), rtol=1e-6)
    status, found = exec_obj.getData()
    assert status == S.QS_SUCCESS
    assert [(buffer.size, buffer.type.name) for buffer in found] == [(BYTES, "QBUFFER_TYPE_DMABUF")] * 2


def test_one_side_may_be_of_the_heap(affine):
    exec_obj, x, y = affine.exec_obj(), Memory(), Memory()
    x.put(X)
    output = np.zeros_like(X)
    affine.infer(exec_obj, [(0, x.buffer()), (1, output)])
    np.testing.assert_allclose(output, rt_programs.affine_of(X), rtol=1e-6)
    affine.infer(exec_obj, [(0, X + 1), (1, y.buffer())])
    np.testing.assert_allclose(y.get(), rt_programs.affine_of(X + 1), rtol=1e-6)
    # No data of the earlier bindings remains.
    affine.infer(exec_obj, [(0, X + 2), (1, output)])
    np.testing.assert_allclose(output, rt_programs.affine_of(X + 2), rtol=1e-6)
    np.testing.assert_allclose(y.get(), rt_programs.affine_of(X + 1), rtol=1e-6)


def test_a_part_of_the_memory(affine):
    exec_obj, x, y = affine.exec_obj(), Memory(3 * PAGE), Memory(3 * PAGE)
    x.put(X, PAGE)
    y.view[:] = -1
    affine.infer(exec_obj, [x.buffer(offset=PAGE), y.buffer(offset=2 * PAGE)])
    np.testing.assert_allclose(y.get(2 * PAGE), rt_programs.affine_of(X), rtol=1e-6)
    assert (y.view[: 2 * PAGE // 4] == -1).all()
    assert (y.view[(2 * PAGE + BYTES) // 4 :] == -1).all()


def test_descriptors_are_given_back(tmp_path, monkeypatch):
    # A card that no other test has used.
    monkeypatch.setenv("QAIC_CPU_DEVICES", "7")
    affine = Client(rt_programs.compiled(tmp_path, rt_programs.affine()), dev=6)
    exec_obj = affine.exec_obj()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(4):
        x, y = Memory(), Memory()
        x.put(X)
        affine.infer(exec_obj, [x.buffer(), y.buffer()])
        np.testing.assert_allclose(y.get(), rt_programs.affine_of(X), rtol=1e-6)
        os.close(x.fd)
        os.close(y.fd)
        del x, y
    affine.infer(exec_obj, [qaicrt.QBuffer(X), qaicrt.QBuffer(bytes(32))])
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    control = _core.EmuControl(6)
    del exec_obj
    assert affine.program.unload() == S.QS_SUCCESS
    assert not [line for line in control.invariants() if "open file" not in line]


def test_sizes_are_those_of_the_dma_buffers(affine, capfd):
    sizes = [mapping.size for mapping in qaicrt.Qpc(affine.path).getBufferMappingsDma()]
    assert sizes[:2] == [BYTES, BYTES]
    exec_obj, memory = affine.exec_obj(), Memory()
    for size in (X.nbytes, BYTES - 1, BYTES + 1):
        refused(capfd, exec_obj.setData([(0, memory.buffer(size))]), "`x`", str(BYTES), str(size))


def test_checksums_need_the_bytes_on_the_host(tmp_path, capfd):
    client = Client(rt_programs.compiled(tmp_path, rt_programs.affine(), io_crc=True))
    exec_obj, memory = client.exec_obj(), Memory()
    refused(capfd, exec_obj.setData([(0, memory.buffer())]), "`x`", "descriptor", "io_crc")
    # The refusal changed nothing.
    output = np.zeros_like(X)
    client.infer(exec_obj, [(0, X), (1, output)])
    np.testing.assert_allclose(output, rt_programs.affine_of(X), rtol=1e-6)


def test_state_stays_where_it_is(tmp_path, capfd):
    client = Client(rt_programs.compiled(tmp_path, rt_programs.counter(), retained_state=True))
    exec_obj, memory = client.exec_obj(), Memory()
    for binding in (rt_programs.STATE, rt_programs.NEXT):
        refused(capfd, exec_obj.setData([(binding, memory.buffer(48))]), "kept between inferences")


def test_the_inference_set_takes_them(affine):
    x, y = Memory(), Memory()
    x.put(X)
    vector = qaicrt.InferenceVector(qaicrt.Qpc(affine.path), qaicrt.InferenceVector.ZERO_FILL)
    assert vector.setBuffers([x.buffer(), y.buffer()]) == S.QS_SUCCESS
    exec_obj = affine.exec_obj()
    affine.infer(exec_obj, vector)
    np.testing.assert_allclose(y.get(), rt_programs.affine_of(X), rtol=1e-6)
