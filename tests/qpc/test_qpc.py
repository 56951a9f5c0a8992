"""Facts from ``qaic.Qpc`` about stored containers, compared with the facts of the vendor's library."""

import contextlib
import gc
import hashlib
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

import qaic
from qaic import _core
from qaic.errors import OptionError, QpcError, QpcFormatError
from qaic.qpc import DataType, Finding, IoType, Qpc, validate
from qpc_support import DATA, FIXTURES, HOSTILE, container, expected, program


def sha256(array) -> str:
    return hashlib.sha256(array).hexdigest()


def codes(source, *severities) -> set[str]:
    return {f.code for f in validate(source) if not severities or f.severity in severities}


def with_numbers(value):
    """Expected JSON contains 64-bit integers as strings, in these fields."""
    if isinstance(value, dict):
        return {k: int(v) if k == "output_size" else with_numbers(v) for k, v in value.items()}
    return [with_numbers(item) for item in value] if isinstance(value, list) else value


@pytest.fixture(params=FIXTURES, ids=lambda path: path.stem)
def case(request):
    return Qpc(request.param), expected(request.param)


def test_the_recorded_containers_are_there():
    assert len(FIXTURES) == 13
    assert len(HOSTILE) >= 20


def test_header_and_segments(case):
    qpc, record = case
    container_record = record["container"]
    header = qpc.header
    assert header["magic"] == int(container_record["magic"], 16)
    for ours, theirs in (
        ("major_version", "major_version"),
        ("minor_version", "minor_version"),
        ("compression_type", "compression_type"),
        ("size", "size"),
        ("base", "base"),
        ("num_images", "num_images"),
        ("images", "rel_images"),
    ):
        assert header[ours] == container_record[theirs], ours
    found = [(s.name, s.size, s.offset, s.start, sha256(s.data)) for s in qpc.segments.values()]
    assert found == [
        (s["name"], s["size"], s["offset"], s["rel_start"], s["sha256"]) for s in container_record["segments"]
    ]
    assert list(qpc.segments) == [s["name"] for s in container_record["segments"]]
    assert qpc.warnings == ()
    assert qpc.is_program
    assert not qpc.slices


def test_network_descriptor(case):
    qpc, record = case
    assert qpc.network_descriptor == with_numbers(record["network_descriptor"])


def test_io_desc(case):
    qpc, record = case
    assert qpc.io_desc_bytes.hex() == record["iodesc_hex"]
    assert qpc.io_desc == record["iodesc"]


def test_program_info(case):
    qpc, record = case
    info = qpc.program_info
    program_record = record["program"]
    assert info.name == program_record["name"]
    assert info.program_index == program_record["programIndex"]
    assert info.num_cores == program_record["numCores"]
    # The vendor's library leaves 0.
    assert program_record["size"] == 0
    assert info.size == qpc.segments["network.elf"].size
    assert info.batch_size == program_record["batchSize"]
    assert info.stats_available == record["stats_available"]
    assert [(c.name, c.index, c.size) for c in info.constants] == [
        (c["name"], c["index"], c["size"]) for c in record["constants_info"]
    ]


@pytest.mark.parametrize("kind", ["buffer_mappings", "buffer_mappings_dma"])
def test_buffer_mappings(case, kind):
    qpc, record = case
    found = [
        (m.name, m.index, m.io_type, m.size, m.is_partial_allowed, m.data_type) for m in getattr(qpc, kind)
    ]
    assert found == [
        (m["bufferName"], m["index"], m["ioType"], m["size"], m["isPartialBufferAllowed"], m["dataType"])
        for m in record[kind]
    ]
    for mapping in getattr(qpc, kind):
        assert isinstance(mapping.io_type, IoType)
        assert isinstance(mapping.data_type, DataType)


def test_constants(case):
    qpc, record = case
    for kind in ("static", "dynamic"):
        part = getattr(qpc.constants, kind)
        wanted = record.get(f"constants_{kind}") or {"size": 0, "sha256": hashlib.sha256(b"").hexdigest()}
        assert (part.nbytes, sha256(part)) == (wanted["size"], wanted["sha256"])
    assert set(qpc.constants.descriptor) == {
        "staticConstantsSize",
        "dynamicConstantsSize",
        "staticConstantsECCEnabled",
        "dynamicConstantsECCEnabled",
    }


def test_metadata(case):
    qpc, record = case
    wanted, found = record["metadata"], qpc.metadata
    assert found["section"] == wanted["section"]
    assert found["section_size"] == wanted["section_size"]
    if wanted["decode"] != "ok":
        # The vendor's library cannot read the legacy struct; this library can.
        assert found["encoding"] == "legacy struct"
        assert found["fields"]["networkName"] == record["program"]["name"]
        return
    assert found["encoding"] == ("terminated flatbuffer" if wanted["stripped"] else "flatbuffer")
    fields = found["fields"]
    for key in wanted.keys() & fields.keys() - {"dmaRequests"}:
        assert fields[key] == wanted[key], key
    assert [
        {key: request[key] for key in ("num", "size", "devOffset", "portId")}
        for request in fields["dmaRequests"]
    ] == [
        {key: request[key] for key in ("num", "size", "devOffset", "portId")}
        for request in wanted["dmaRequests"]
    ]


def test_a_container_for_a_card_has_no_plan(case):
    qpc, _ = case
    assert qpc.target == "card"
    assert qpc.plan is None
    assert qpc.graph is None
    assert qpc.options == {}
    assert dict(qpc.initializers) == {}


def test_recorded_containers_are_valid(case):
    qpc, _ = case
    assert [finding for finding in qpc.validate() if finding.severity == "error"] == []
    assert qpc.validate() == validate(qpc.path)
    assert qpc.validate() == validate(qpc.path.read_bytes())


BAD = {
    "bad01_magic": "qpc.bad_magic",
    "bad02_truncated": "qpc.size_mismatch",
    "bad03_segment_past_end": "qpc.payload_out_of_bounds",
    "bad04_missing_networkdesc": "qpc.missing_segment",
}


@pytest.mark.parametrize("name", BAD)
def test_rejects_malformed(name):
    path = DATA / "qpc" / f"{name}.qpc"
    with pytest.raises(QpcFormatError) as caught:
        Qpc(path)
    assert caught.value.code == BAD[name]
    assert caught.value.context == {"path": str(path)}
    assert str(path) in str(caught.value)
    findings = validate(path)
    assert [(f.severity, f.code) for f in findings] == [("error", BAD[name])]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_or_reported(name):
    path = DATA / "hostile" / name
    assert HOSTILE[name] in codes(path)
    assert codes(path, "error")
    try:
        qpc = Qpc(path)
        found = [qpc.program_info, qpc.io_desc, qpc.constants, qpc.metadata]
    except QpcError as error:
        found = [error.code]
    assert len(found) == 4 or found[0] in codes(path)


def test_paths(tmp_path):
    folder = tmp_path / "program"
    folder.mkdir()
    data = FIXTURES[0].read_bytes()
    (folder / "programqpc.bin").write_bytes(data)
    file = folder / "programqpc.bin"
    for source in (folder, str(folder), file, str(file), str(tmp_path / "*"), str(tmp_path / "*" / "*.bin")):
        assert Qpc(source).path == file
    other = tmp_path / "other.bin"
    other.write_bytes(data)
    with pytest.raises(OptionError, match=r"other\.bin"):
        Qpc(str(tmp_path / "*"))


def test_a_missing_file_is_named(tmp_path):
    for source in (tmp_path / "none.qpc", tmp_path, str(tmp_path / "*.qpc")):
        with pytest.raises(FileNotFoundError) as caught:
            Qpc(source)
        assert str(tmp_path) in str(caught.value.filename)


def test_model_in_place_of_a_container_is_recognized(tmp_path):
    model = tmp_path / "net.onnx"
    model.write_bytes(b"\x08\x08 no container")
    with pytest.raises(QpcFormatError, match="not a QPC") as caught:
        Qpc(model)
    assert caught.value.hints == (f"`openqaic compile {model}` compiles the model",)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda b: np.frombuffer(b, np.uint8)])
def test_bytes(wrap):
    data = FIXTURES[0].read_bytes()
    qpc = Qpc(wrap(data))
    assert qpc.path is None
    assert b"".join(segment.data.tobytes() for segment in qpc.segments.values())
    assert qpc.io_desc == expected(FIXTURES[0])["iodesc"]


def test_changing_a_given_bytearray_changes_nothing():
    data = bytearray(FIXTURES[0].read_bytes())
    qpc = Qpc(data)
    before = qpc.segments["constants.bin"].data.copy()
    data[:] = bytes(len(data))
    assert np.array_equal(qpc.segments["constants.bin"].data, before)


@pytest.mark.parametrize("source", [3, None, ["a"]])
def test_what_is_neither_path_nor_bytes_is_a_type_error(source):
    with pytest.raises(TypeError):
        Qpc(source)


def test_pointers_against_a_base():
    plain = container(program(constants=b"abc"))
    based = container(program(constants=b"abc"), base=0x7F00_0000_1000)
    assert Qpc(based).header["base"] == 0x7F00_0000_1000
    assert [s.data.tobytes() for s in Qpc(based).segments.values()] == [
        s.data.tobytes() for s in Qpc(plain).segments.values()
    ]


def test_oddities_are_warnings():
    odd = container(program(extra=[("spare", b"12345678", 3)]))
    (warning,) = Qpc(odd).warnings
    assert "segment spare has the offset 3;" in warning


def test_repr():
    qpc = Qpc(FIXTURES[0])
    assert (
        repr(qpc)
        == f"<Qpc {str(FIXTURES[0])!r}, card program 'simple_f32': 1 in, 1 out, 4 cores, 3059 bytes>"
    )
    broken = Qpc(container(program(elf=b"no elf")))
    assert repr(broken).startswith("<Qpc unreadable program 'net': 0 in, 0 out")
    assert (
        repr(qpc.segments["constants.bin"])
        == "Segment(name='constants.bin', size=256, offset=256, start=228)"
    )


def test_qaic_qpc_is_this_class():
    assert qaic.Qpc is Qpc


def test_a_program_may_have_payloads_that_begin_like_a_container():
    magic = bytes.fromhex("7ccda100")
    assert codes(container(program(constants=magic)), "error") == set()
    # The container is still checked as a program.
    assert codes(container(program(constants=magic, elf=b"no elf")), "error") == {"qpc.elf"}


def test_findings_are_plain_values():
    (finding,) = validate(b"no container at all, only some text")
    assert finding == Finding("error", "qpc.bad_magic", None, finding.message)
    assert pickle.loads(pickle.dumps(finding)) == finding


def test_no_reference_cycles():
    gc.collect()
    qpc = Qpc(FIXTURES[8])
    for name in ("segments", "program_info", "constants", "metadata", "plan", "initializers", "slices"):
        getattr(qpc, name)
    del qpc
    assert gc.collect() == 0


def test_damaged_metadata_is_an_error_of_that_part_only():
    qpc = Qpc(container(program(elf=b"no elf")))
    with pytest.raises(QpcFormatError) as caught:
        _ = qpc.metadata
    assert caught.value.code == "qpc.elf"
    with pytest.raises(QpcFormatError):
        _ = qpc.plan
    assert json.dumps(qpc.network_descriptor)
    assert qpc.program_info.total_required_memory == 0


@pytest.mark.parametrize("read", [Qpc, validate])
def test_a_file_that_the_kernel_generates_is_not_read_without_end(monkeypatch, read):
    """This file has an end; other files of this kind have none, and all report the size 0."""
    limited, read_stream = [], qaic.qpc._read_stream
    monkeypatch.setattr(qaic.qpc, "_read_stream", lambda path: limited.append(path) or read_stream(path))
    with contextlib.suppress(QpcError):
        read("/proc/self/maps")
    assert limited == [Path("/proc/self/maps")]


@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_the_reader_of_files_takes_no_pipe_and_no_endless_device(tmp_path, kind):
    path = tmp_path / "pipe" if kind == "pipe" else Path("/dev/zero")
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(OSError, match="Invalid argument"):
        _core.Qpc(path, mmap=True)
