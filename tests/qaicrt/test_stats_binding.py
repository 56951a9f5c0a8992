"""Memory that is bound to ``aiccyclecounts`` requests statistics."""

import numpy as np
import pytest

import engine_version
import qaic.stats
import qaicrt
import rt_programs
from rt_programs import ROWS, Client

X = np.arange(8, dtype=np.float32).reshape(2, 4)
CONTAINER = "/programqpc.bin"


def compiled(tmp_path, net, **options):
    return Client(rt_programs.compiled(tmp_path, net, **options))


def names(client):
    return [mapping.bufferName for mapping in client.program.getBufferMappings()]


def sizes(client):
    return [mapping.size for mapping in client.program.getBufferMappings()]


def statistics(client, memory):
    buffer = qaic.stats.open(bytes(memory), qpc=client.path + CONTAINER)
    buffer.check()
    return buffer


@pytest.mark.parametrize("level", [40, 50, 70])
def test_the_buffer_is_filled_where_the_caller_has_it(tmp_path, level):
    client = compiled(tmp_path, rt_programs.affine(), stats_level=level)
    if level == 40:
        # The default level adds no output.
        assert names(client) == ["x", "y"]
        return
    assert names(client) == ["x", "y", "aiccyclecounts"]
    exec_obj = client.exec_obj()
    found = []
    for _ in range(3):
        buffers = [qaicrt.QBuffer(X.tobytes()), *(qaicrt.QBuffer(bytes(size)) for size in sizes(client)[1:])]
        client.infer(exec_obj, buffers)
        y = np.frombuffer(bytes(buffers[1]), np.float32).reshape(2, 4)
        np.testing.assert_allclose(y, rt_programs.affine_of(X), rtol=1e-6)
        found.append(statistics(client, buffers[2]))
    assert [buffer.run.inference for buffer in found] == [0, 1, 2]
    assert {buffer.run.stats_level for buffer in found} == {level}
    has_operations = level >= 70 and engine_version.profiles_runs()
    assert all(buffer.has("OP") == has_operations for buffer in found)
    starts = [int(buffer.threads["start_u"][0]) for buffer in found]
    assert starts == sorted(set(starts))


def test_an_empty_buffer_is_no_wish(tmp_path, monkeypatch):
    client = compiled(tmp_path, rt_programs.affine(), stats_level=70)
    exec_obj = client.exec_obj()
    size = sizes(client)[2]
    # The engine could not write a profile, and the statistics would contain a note about this.
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    buffers = [qaicrt.QBuffer(X.tobytes()), qaicrt.QBuffer(bytes(32)), qaicrt.QBuffer(b"")]
    client.infer(exec_obj, buffers)
    y = np.frombuffer(bytes(buffers[1]), np.float32).reshape(2, 4)
    np.testing.assert_allclose(y, rt_programs.affine_of(X), rtol=1e-6)
    buffers[2] = qaicrt.QBuffer(bytes(size))
    client.infer(exec_obj, buffers)
    assert "operations were not measured" in statistics(client, buffers[2]).meta["notes"][0]


def test_programs_with_specializations_have_one_buffer(tmp_path):
    client = compiled(tmp_path, rt_programs.doubled(), stats_level=50, network_specialization_config=ROWS)
    assert names(client) == ["x", "y", "aiccyclecounts"]
    exec_obj = client.exec_obj()
    size = sizes(client)[2]
    for number, rows in enumerate((8, 3, 1)):
        x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
        buffers = [qaicrt.QBuffer(data) for data in (x.tobytes(), bytes(x.nbytes), bytes(size))]
        dims = qaicrt.BufferDimensionsVecRef([(4, [rows, 4]), (4, [rows, 4]), (1, [size])])
        client.infer(exec_obj, buffers, dims)
        np.testing.assert_array_equal(np.frombuffer(bytes(buffers[1]), np.float32).reshape(rows, 4), 2 * x)
        assert statistics(client, buffers[2]).run.specialization == number


def test_state_is_kept_while_it_is_measured(tmp_path):
    client = compiled(tmp_path, rt_programs.counter(), stats_level=70, retained_state=True)
    exec_obj = client.exec_obj()
    assert names(client)[-1] == "aiccyclecounts"
    size = sizes(client)[-1]
    for turn in range(4):
        x = qaicrt.QBuffer(np.ones(1, np.float32).tobytes())
        empty = qaicrt.QBuffer(b"")
        y, stats = qaicrt.QBuffer(bytes(48)), qaicrt.QBuffer(bytes(size))
        client.infer(exec_obj, [x, empty, y, empty, stats])
        assert set(np.frombuffer(bytes(y), np.float32)) == {turn}
        assert statistics(client, stats).run.inference == turn


def test_the_noop_device_writes_times_of_a_test_device(tmp_path, monkeypatch):
    path = rt_programs.compiled(tmp_path, rt_programs.affine(), stats_level=50)
    monkeypatch.setenv("QAIC_DEVICE", "noop")
    client = Client(path)
    buffers = [qaicrt.QBuffer(X.tobytes()), *(qaicrt.QBuffer(bytes(size)) for size in sizes(client)[1:])]
    client.infer(client.exec_obj(), buffers)
    found = statistics(client, buffers[2])
    assert (found.run.device_name, len(found.threads), len(found.ports)) == ("test", 1, 2)
