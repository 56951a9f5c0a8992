"""``qpc_crc``: a container whose checksums reveal damage."""

import re
import struct
import zlib

import numpy as np
import pytest

import qaic
import rt_programs
from qaic import _core
from qaic.compiler.driver import compile_model
from qaic.errors import QpcFormatError
from qaic.options.table import CompileOptions
from rt_programs import Client
from session_models import affine, save

SEGMENT = "openqaic.crc"


@pytest.fixture
def wide(tmp_path, monkeypatch):
    """A container with constants outside the graph, and with checksums."""
    monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / "cache"))
    return compile_model(
        save(tmp_path, affine(64)), CompileOptions(qpc_crc=True), {}, output_dir=tmp_path / "out"
    )


def places(path):
    """Name, offset and payload of every segment, in the order of the table."""
    data = path.read_bytes()
    qpc = _core.Qpc(path)
    found = []
    for name, *_ in qpc.segments:
        payload = bytes(qpc.payload(name))
        assert data.count(payload) >= 1
        found.append((name, data.index(payload), payload))
    return found


def test_every_segment_has_its_sum(wide):
    segments = places(wide)
    (stored,) = [payload for name, _, payload in segments if name == SEGMENT]
    others = [payload for name, _, payload in segments if name != SEGMENT]
    assert "constants.bin" in [name for name, _, _ in segments]
    assert stored == b"".join(struct.pack("<I", zlib.crc32(payload)) for payload in others)
    assert not _core.Qpc(wide).validate()


def test_container_runs(wide):
    with qaic.Session(wide) as session:
        assert session.run({"x": np.ones((2, 64), np.float32)})["y"].shape == (2, 64)


@pytest.mark.virtual_card("cards always verify the checksums of a container")
def test_only_where_it_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / "cache"))
    path = compile_model(save(tmp_path, affine(64)), CompileOptions(), {})
    assert SEGMENT not in [name for name, *_ in _core.Qpc(path).segments]
    damage(path, "constants.bin", 100)
    qaic.Session(path).setup()


def damage(path, name, at):
    (start,) = [offset for segment, offset, _ in places(path) if segment == name]
    data = bytearray(path.read_bytes())
    data[start + at] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "at"), [("constants.bin", 0), ("constants.bin", 16_000), ("network.elf", 300)]
)
def test_damage_is_found_at_load(wide, name, at):
    damage(wide, name, at)
    session = qaic.Session(wide)
    with pytest.raises(
        QpcFormatError, match=f"segment {name} of {re.escape(str(wide))} is damaged: the CRC of its data"
    ) as caught:
        session.setup()
    assert caught.value.code == "qpc.crc_mismatch"
    findings = [(code, segment) for _, code, segment, _ in _core.Qpc(wide).validate()]
    assert ("qpc.crc_mismatch", SEGMENT) in findings


def test_damaged_sums(wide):
    damage(wide, SEGMENT, 2)
    with pytest.raises(QpcFormatError, match="the CRC of its data is 0x"):
        qaic.Session(wide).setup()


def test_low_level_interface_refuses_as_well(wide):
    damage(wide, "constants.bin", 50)
    client = Client(str(wide.parent))
    assert client.program.load() == rt_programs.S.QS_ERROR
