"""`qaic.stats.open`: views, facts, the program of a buffer, and files that are refused."""

import gc
import json
import struct
import weakref
import zlib

import numpy as np
import pytest

import qaic
import stats_buffers as made
from qaic import _core, stats
from qaic.errors import (
    StatsError,
    StatsFormatError,
    StatsMismatchError,
    StatsVersionError,
    UnknownStatsLayoutError,
)
from qpc_support import DATA, FIXTURES

# These values are written here, not read from the table under test.
OP = np.dtype(
    [
        ("oc", "<u4"),
        ("core", "<u2"),
        ("thread", "u1"),
        ("kflags", "u1"),
        ("start_u", "<u8"),
        ("dur_u", "<u4"),
        ("sync_u", "<u4"),
        ("barrier_u", "<u4"),
        ("flags", "<u2"),
        ("iter", "<u2"),
        ("pcycles", "<u8"),
        ("out_bytes", "<u8"),
    ]
)
SIZES = {
    "CORE": 64,
    "THREAD": 64,
    "PORT": 32,
    "RING": 16,
    "PMU_EVENTS": 32,
    "PMU": 80,
    "OP": 48,
    "OP_PMU": 72,
}


def test_record_types_are_those_of_the_specification():
    assert stats.RECORDS["OP"] == OP
    assert {name: dtype.itemsize for name, dtype in stats.RECORDS.items()} == SIZES


def test_views_show_the_very_bytes_and_keep_them():
    raw = made.even_buffer(50, cores=2, threads=3)
    buffer = stats.open(raw)
    ops = buffer.ops
    assert ops.dtype == OP
    assert not ops.flags.writeable
    assert not ops.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        ops["oc"][0] = 1
    # The independent reader decodes the section directory.
    entries = np.frombuffer(raw, "<u4", 8 * 4, 128).reshape(4, 8)
    row = next(row for row in entries if row[0] == 7)
    expected = np.frombuffer(raw, OP, int(row[6]), int(row[2]))
    assert np.shares_memory(ops, expected)
    np.testing.assert_array_equal(ops, expected)
    gone = weakref.ref(buffer)
    del buffer, raw, expected, entries
    gc.collect()
    assert gone() is None
    assert ops["oc"].tolist() == list(range(50)) * 6


def test_files_are_opened_by_path(tmp_path):
    path = tmp_path / "x-aiccyclecounts.bin"
    path.write_bytes(made.even_buffer(30_000))
    buffer = stats.open(path, check=True)
    assert buffer.path == str(path)
    assert len(buffer.ops) == 30_000
    assert stats.open(str(path)).run == buffer.run
    with pytest.raises(FileNotFoundError):
        stats.open(tmp_path / "none.bin")


def test_arrays_are_copied_so_that_later_writes_change_nothing():
    array = np.frombuffer(made.even_buffer(5), np.uint8).copy()
    buffer = stats.open(array)
    before = buffer.ops.copy()
    array[:] = 0
    np.testing.assert_array_equal(buffer.ops, before)


def test_facts_and_empty_sections():
    facts = made.run_facts(
        inference=7, program=2, activation=1, flags=2 | 16 | 64, epoch_utc_ns=5, specialization=3
    )
    raw = _core.encode_stats(facts, made.even_sections(4) | {"META": b'{"producer": "test", "version": [1]}'})
    buffer = stats.open(raw)
    run = buffer.run
    assert {name: getattr(run, name) for name in facts} == facts
    assert run.device_name == "CPU"
    assert (run.complete, run.ops_truncated, run.coarse_clock, run.instrumented) == (False, True, True, True)
    assert (run.pcycles_absent, run.pcycles_estimated, run.ddr_is_tensor_bytes) == (False, False, False)
    assert run.microseconds(19_200) == 1000
    assert buffer.meta == {"producer": "test", "version": [1]}
    assert buffer.layout == "oqstats"
    assert not buffer.has("PORT")
    assert buffer.has("OP")
    assert buffer.ports.dtype == stats.RECORDS["PORT"]
    assert len(buffer.ports) == len(buffer.op_pmu) == len(buffer.pmu_events) == 0
    with pytest.raises(KeyError):
        buffer.has("op")


@pytest.mark.parametrize("meta", [b"", b"nonsense", b"[1]", b"\xff\xfe", b"[" * 100_000, b"NaN"])
def test_meta_that_is_no_object_is_empty(meta):
    raw = made.even_buffer(1, meta=meta)
    assert stats.open(raw).meta == {}
    buffer = stats.open(raw, check=True)
    assert any("META" in text for text in buffer.warnings) == (meta not in {b"", b"[1]"})


def test_larger_records_are_read_by_their_prefix():
    raw = bytearray(made.even_buffer(4))
    ops = stats.open(bytes(raw)).ops.copy()
    # The same operations as records of 64 bytes, which a later minor version may write, after the end.
    wide = np.zeros((4, 64), np.uint8)
    wide[:, :48] = ops.view(np.uint8).reshape(4, 48)
    wide[:, 48:] = 0xEE
    offset = -(-len(raw) // 64) * 64
    raw += bytes(offset - len(raw)) + wide.tobytes()
    entry = 128 + 32 * 2
    assert struct.unpack_from("<I", raw, entry) == (7,)
    struct.pack_into("<QIIII", raw, entry + 8, offset, 64, 4, 4, zlib.crc32(wide.tobytes()))
    buffer = stats.open(resealed(raw, used=len(raw), size=len(raw)), check=True)
    np.testing.assert_array_equal(buffer.ops, ops)
    assert buffer.ops.strides == (64,)
    # When they are written again, they have the size of this version.
    sections = {"CORE": buffer.cores, "THREAD": buffer.threads, "OP": wide.reshape(-1).view("V64")}
    again = stats.open(_core.encode_stats(made.run_facts(), sections), check=True)
    np.testing.assert_array_equal(again.ops, ops)
    assert again.ops.strides == (48,)


def resealed(raw, **fields):
    """Return the bytes with changed header fields and the matching CRC."""
    raw = bytearray(raw)
    places = {"size": ("<Q", 16), "used": ("<Q", 24), "sections": ("<I", 32), "minor": ("<H", 10)}
    for name, value in fields.items():
        struct.pack_into(places[name][0], raw, places[name][1], value)
    struct.pack_into("<I", raw, 120, zlib.crc32(raw[:120]))
    return bytes(raw)


def test_unknown_sections_and_minor_versions_are_skipped():
    raw = bytearray(made.even_buffer(4, meta=b'{"a": 1}'))
    struct.pack_into("<I", raw, 128 + 32 * 3, 4711)
    buffer = stats.open(resealed(raw, minor=9), check=True)
    assert buffer.meta == {}
    assert len(buffer.ops) == 4


def test_a_longer_file_is_read_with_a_warning():
    buffer = stats.open(made.even_buffer(4) + b"rest")
    assert len(buffer.warnings) == 1
    assert "the rest is not read" in buffer.warnings[0]


# --- the program ------------------------------------------------------------------------------------------


def test_descriptor_columns():
    descriptor = stats.Descriptor.from_json(made.descriptor_json([4, 2], ["HVX", "HMX"], [0, 0, 1]))
    facts = made.descriptor_facts([4, 2], ["HVX", "HMX"], [0, 0, 1])
    assert (descriptor.network, descriptor.cores) == ("net", 2)
    assert (descriptor.groups, descriptor.thread_groups) == (("HVX", "HMX"), (0, 0, 1))
    assert (descriptor.stats_level, descriptor.op_stats_level, descriptor.ucycles_per_ms) == (70, 70, 19_200)
    for core, listed in enumerate(facts["cores"]):
        columns = descriptor.ops(core)
        assert len(columns) == len(listed["ops"])
        for field in ("name", "kind", "group", "memory", "types", "shape", "output_bytes"):
            assert getattr(columns, field).tolist() == [op[field] for op in listed["ops"]]
        assert columns.nodes.tolist() == [tuple(op["nodes"]) for op in listed["ops"]]
        assert columns.deps.tolist() == [
            tuple((d["core"], d["oc"], d["data"]) for d in op["deps"]) for op in listed["ops"]
        ]
        assert not columns.name.flags.writeable
    with pytest.raises(IndexError, match="core 2 of a program with 2"):
        descriptor.ops(2)
    # Kinds of all executions in one call.
    buffer = stats.open(made.even_buffer(4, fingerprint=descriptor.fingerprint), qpc=descriptor)
    assert buffer.descriptor is descriptor
    assert descriptor.ops(0).kind[buffer.ops["oc"]].tolist() == ["MatMul", "Add", "Relu", "MatMul"]


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{", b'{"version": 2}', b'{"version": 1, "surprise": 0}', b'{"cores": [{"ops": 3}]}'],
)
def test_descriptors_that_are_none(text):
    with pytest.raises(StatsFormatError) as caught:
        stats.Descriptor.from_json(text)
    assert caught.value.code == "stats.descriptor"


def test_the_buffer_of_another_program_needs_force():
    descriptor = stats.Descriptor.from_json(made.descriptor_json([4]))
    raw = made.even_buffer(4)
    with pytest.raises(StatsMismatchError) as caught:
        stats.open(raw, qpc=descriptor)
    assert caught.value.code == "stats.other_program"
    assert descriptor.fingerprint.hex() in caught.value.message
    assert caught.value.hints
    assert stats.open(raw, qpc=descriptor, force=True, check=True).descriptor is descriptor


def test_a_container_describes_its_operations():
    path = DATA / "qpc" / "s10_stats.qpc"
    (descriptor,) = stats.descriptors(path)
    network = qaic.Qpc(path).network_descriptor
    assert descriptor.network == network["network_name"]
    assert descriptor.stats_level == network["stats"]["stats_level"]
    raw = made.even_buffer(3, fingerprint=descriptor.fingerprint)
    buffer = stats.open(raw, qpc=path)
    assert buffer.descriptor.network == descriptor.network
    assert stats.open(raw, qpc=qaic.Qpc(path)).descriptor.fingerprint == descriptor.fingerprint


def test_a_container_without_statistics_has_no_buffers():
    path = next(p for p in FIXTURES if "stats" not in qaic.Qpc(p).network_descriptor)
    assert stats.descriptors(path) == []
    with pytest.raises(StatsMismatchError) as caught:
        stats.open(made.even_buffer(3), qpc=path)
    assert caught.value.code == "stats.no_descriptor"
    assert stats.open(made.even_buffer(3), qpc=path, force=True).descriptor is None


@pytest.mark.parametrize("force", [False, True])
def test_the_buffer_tells_which_device_it_is_of(tmp_path, force):
    devices = [
        stats.Descriptor.from_json(made.descriptor_json([count], network=f"net_slice0{place}"))
        for place, count in enumerate((1000, 1001, 1002))
    ]
    for place, descriptor in enumerate(devices):
        # The name of the file is not used.
        path = tmp_path / f"x-program-0-inf-{place}-net_slice00-aiccyclecounts.bin"
        path.write_bytes(made.even_buffer(3, fingerprint=descriptor.fingerprint))
        assert stats.open(path, qpc=devices, force=force).descriptor is descriptor


def test_of_a_foreign_buffer_the_name_is_taken_by_force(tmp_path):
    devices = [
        stats.Descriptor.from_json(made.descriptor_json([1000 + place], network=network))
        for place, network in enumerate(("net/slice0", "net/slice1"))
    ]
    path = tmp_path / "x-program-0-inf-0-net_slice1-aiccyclecounts.bin"
    path.write_bytes(made.even_buffer(3, fingerprint=bytes(16)))
    with pytest.raises(StatsMismatchError):
        stats.open(path, qpc=devices)
    assert stats.open(path, qpc=devices, force=True).descriptor is devices[1]


# --- files that are not buffers ---------------------------------------------------------------------------


def test_unknown_bytes_name_what_is_known_of_them():
    descriptor = stats.Descriptor.from_json(made.descriptor_json([653, 649], ["HVX"], [0] * 6))
    with pytest.raises(UnknownStatsLayoutError) as caught:
        stats.open(b"\x17" * 885_384, qpc=descriptor)
    assert caught.value.code == "stats.unknown_layout"
    figures = {"bytes": 885_384, "level": 70, "cores": 2, "threads": 6, "ops": [653, 649]}
    assert figures.items() <= caught.value.context.items()
    for text in ("885384", "level 70", "2 cores", "6 threads", "[653, 649]", "not public"):
        assert text in caught.value.message


@pytest.mark.parametrize("size", [0, 1, 127, 4096])
def test_zeros_were_never_written(size, tmp_path):
    path = tmp_path / "zeros.bin"
    path.write_bytes(bytes(size))
    for source in (bytes(size), path):
        with pytest.raises(StatsFormatError) as caught:
            stats.open(source)
        assert caught.value.code == "stats.empty"
    assert str(path) in str(caught.value)


def test_other_versions():
    raw = bytearray(made.even_buffer(4))
    struct.pack_into("<H", raw, 8, 2)
    with pytest.raises(StatsVersionError) as caught:
        stats.open(resealed(raw))
    assert caught.value.code == "stats.version"


def test_damage_of_records_is_found_by_the_full_check():
    raw = bytearray(made.even_buffer(100))
    raw[600] ^= 1
    buffer = stats.open(bytes(raw))
    for _ in range(2):
        with pytest.raises(StatsFormatError) as caught:
            buffer.check()
        assert caught.value.code == "stats.section_crc"


def test_arguments_of_the_writer():
    sections = made.even_sections(4)
    with pytest.raises(StatsError, match="not a multiple of") as caught:
        _core.encode_stats(made.run_facts(), sections | {"OP": b"123"})
    assert caught.value.code == "stats.argument"
    with pytest.raises(StatsError, match="field of an inference"):
        _core.encode_stats({"speed": 3}, sections)
    with pytest.raises(StatsError, match="16 bytes"):
        _core.encode_stats(made.run_facts(), sections, b"short")
    with pytest.raises(KeyError):
        _core.encode_stats(made.run_facts(), {"OPS": sections["OP"]})
    with pytest.raises(OverflowError):
        _core.encode_stats({"cores": 2**16}, sections)
    with pytest.raises(StatsError) as caught:
        _core.encode_stats(made.run_facts(), sections, size=383)
    assert caught.value.code == "stats.buffer_too_small"
    with pytest.raises(StatsError, match="contiguous"):
        _core.encode_stats(made.run_facts(), sections | {"OP": sections["OP"][::2]})


def test_capacity_is_what_the_writer_needs():
    counts = {"CORE": 2, "THREAD": 6, "PORT": 12, "OP": 301, "META": 4096}
    expected = 128 + 32 * 5 + 32  # sections begin at multiples of 64
    expected += sum(-(-n * {"META": 1, **SIZES}[name] // 64) * 64 for name, n in counts.items())
    assert _core.stats_capacity(counts) == expected
    sections = {name: np.zeros(n, stats.RECORDS[name]) for name, n in counts.items() if name in stats.RECORDS}
    raw = _core.encode_stats(made.run_facts(2, 3), sections | {"META": b" " * 4096})
    assert len(raw) == expected
    with pytest.raises(StatsError):
        _core.stats_capacity({"OP": 2**62})


def test_names_are_json_of_the_container():
    text = json.dumps(made.descriptor_facts([3]))
    descriptor = stats.Descriptor.from_json(text)
    assert json.loads(descriptor.compiled.to_json())["cores"][0]["ops"][0]["name"] == "/layer.0/MatMul/__0"
    assert stats.Descriptor.from_json(descriptor.compiled.to_json()).ops(0).name.tolist() == [
        f"/layer.{n}/MatMul/__{n}" for n in range(3)
    ]
