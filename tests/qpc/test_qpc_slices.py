"""Containers of containers: one per device."""

import numpy as np
import pytest

import qaic
from qaic.errors import QpcError, QpcFormatError, QpcLimitError
from qaic.qpc import Qpc
from qpc_support import FIXTURES, container, program

FIRST, SECOND = FIXTURES[0].read_bytes(), FIXTURES[4].read_bytes()


def multi_device(*inner: bytes, marked=True) -> bytes:
    slices = [(f"QAicGraph_slice{number:02}", data) for number, data in enumerate(inner)]
    return container([("mdp_meta_info", b"order"), *slices] if marked else slices)


@pytest.mark.parametrize("marked", [True, False])
def test_slices_are_programs(marked):
    qpc = Qpc(multi_device(FIRST, SECOND, marked=marked))
    assert not qpc.is_program
    assert list(qpc.slices) == ["QAicGraph_slice00", "QAicGraph_slice01"]
    assert [inner.program_info.name for inner in qpc.slices.values()] == ["simple_f32", "quant_i8"]
    assert qpc.slices["QAicGraph_slice00"].io_desc == Qpc(FIRST).io_desc
    assert qpc.validate() == [] or all(f.severity == "warning" for f in qpc.validate())
    assert "2 slices" in repr(qpc)


def test_slices_share_the_memory_of_the_outer_container(tmp_path):
    path = tmp_path / "programqpc.bin"
    path.write_bytes(multi_device(FIRST, container(program(constants=bytes(2 << 20)))))
    qpc = Qpc(path)
    outer = qpc.segments["QAicGraph_slice01"].data
    inner = qpc.slices["QAicGraph_slice01"].segments["constants.bin"].data
    assert np.shares_memory(outer, inner)
    start = qpc.slices["QAicGraph_slice01"].segments["constants.bin"].start
    assert np.array_equal(outer[start : start + inner.size], inner)
    del qpc, outer
    assert inner.sum() == 0


@pytest.mark.parametrize(
    "read",
    [
        lambda q: q.program_info,
        lambda q: q.network_descriptor,
        lambda q: q.io_desc,
        lambda q: q.io_desc_bytes,
        lambda q: q.constants,
        lambda q: q.metadata,
    ],
)
def test_the_outer_container_has_no_program(read):
    with pytest.raises(QpcError) as caught:
        read(Qpc(multi_device(FIRST)))
    assert caught.value.code == "qpc.multi_device"
    assert "slices" in caught.value.hints[0]


def test_a_session_refuses_it(tmp_path):
    path = tmp_path / "programqpc.bin"
    path.write_bytes(multi_device(FIRST, SECOND))
    with pytest.raises(QpcError) as caught:
        qaic.Session(path)
    assert caught.value.code == "qpc.multi_device"


def test_a_program_has_no_slices_whatever_its_payloads_begin_with():
    qpc = Qpc(container(program(constants=FIRST)))
    assert qpc.is_program
    assert not qpc.slices


def test_depth_is_limited():
    nested = FIRST
    for _ in range(3):
        nested = container([("mdp_meta_info", b""), ("slice", nested)])
    third = Qpc(nested).slices["slice"].slices["slice"]
    assert "slice" in third.slices
    with pytest.raises(QpcLimitError) as caught:
        third.slices["slice"]
    assert caught.value.code == "qpc.limit_exceeded"


def test_a_damaged_slice_does_not_hide_the_others(tmp_path):
    qpc = Qpc(multi_device(FIRST, SECOND[:-1]))
    assert list(qpc.slices) == ["QAicGraph_slice00", "QAicGraph_slice01"]
    with pytest.raises(QpcFormatError) as caught:
        qpc.slices["QAicGraph_slice01"]
    assert caught.value.code == "qpc.size_mismatch"
    assert qpc.slices["QAicGraph_slice00"] is qpc.slices["QAicGraph_slice00"]
    with pytest.warns(UserWarning, match="QAicGraph_slice01_dir/ is skipped"):
        qpc.extract(tmp_path)
    assert (tmp_path / "QAicGraph_slice01").read_bytes() == SECOND[:-1]
    assert (tmp_path / "QAicGraph_slice00_dir" / "network.elf").exists()
    with pytest.raises(KeyError):
        qpc.slices["mdp_meta_info"]
