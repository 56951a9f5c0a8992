"""Properties of all containers and of all sequences of bytes."""

import struct
import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from qaic import _core
from qaic.cli.qpc.facts import facts
from qaic.cli.qpc.text import info_text
from qaic.errors import QpcError
from qaic.qpc import Qpc, validate
from qaic.qpc.extract import file_names
from qpc_support import DATA, FIXTURES, container, program

# Any name that the format allows: UTF-8 without NUL, 1 to 255 bytes.
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40).filter(
    lambda name: len(name.encode()) <= 255
)
PROGRAM = program(constants=bytes(range(200)))
TAKEN = {name for name, _, _ in PROGRAM}


@st.composite
def segment_lists(draw):
    extra = draw(
        st.dictionaries(NAMES.filter(lambda name: name not in TAKEN), st.binary(max_size=300), max_size=6)
    )
    return draw(st.permutations([*PROGRAM, *((name, payload, 0) for name, payload in extra.items())]))


@given(
    segments=segment_lists(),
    alignment=st.sampled_from([8, 64, 4096]),
    cut=st.integers(1, 200),
    mmap=st.booleans(),
)
def test_what_the_writer_writes_is_read_back(segments, alignment, cut, mmap):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.qpc"
        writer = _core.QpcWriter(
            path, [(name, len(data), offset) for name, data, offset in segments], alignment
        )
        for name, data, _ in segments:
            for start in range(0, len(data), cut):
                writer.write(name, data[start : start + cut])
        writer.finish()
        qpc = Qpc(path, mmap=mmap)
        found = [(s.name, s.data.tobytes(), s.offset) for s in qpc.segments.values()]
        assert found == list(segments)
        assert all(segment.start % alignment == 0 for segment in qpc.segments.values())
        assert qpc.header["size"] == path.stat().st_size
        assert [f for f in qpc.validate() if f.severity == "error"] == []


@given(segments=segment_lists(), alignment=st.sampled_from([1, 8, 64]), base=st.integers(0, 1 << 62))
def test_layout_and_base_do_not_matter(segments, alignment, base):
    qpc = Qpc(container(segments, alignment=alignment, base=base))
    assert [(s.name, s.data.tobytes(), s.offset) for s in qpc.segments.values()] == list(segments)


def outcome(read):
    """The value, or the code of the only allowed kind of error."""
    try:
        return read(), "qpc.fine"
    except QpcError as error:
        return None, error.code


def read_everything(data: bytes) -> None:
    """Read everything. A damaged part must raise an error of this package, which has a code."""
    qpc, code = outcome(lambda: Qpc(data))
    if qpc is None:
        assert code.startswith("qpc.")
        return
    assert repr(qpc)
    reads = (
        lambda: list(qpc.slices.values()),
        lambda: qpc.program_info,
        lambda: qpc.network_descriptor,
        lambda: qpc.io_desc,
        lambda: qpc.io_desc_bytes,
        lambda: qpc.constants,
        lambda: qpc.metadata,
        lambda: qpc.plan,
        lambda: qpc.options,
        lambda: qpc.graph,
        lambda: [qpc.initializers[name] for name in qpc.initializers],
    )
    for read in reads:
        _, code = outcome(read)
        assert code.startswith("qpc.")
    for segment in qpc.segments.values():
        assert segment.data.nbytes == segment.size
    lines = info_text(facts(qpc)).splitlines()
    assert all(line.isprintable() for line in lines)
    for finding in validate(data):
        assert finding.severity in {"error", "warning"}
        assert finding.code


@given(st.binary(max_size=400))
def test_any_bytes(data):
    read_everything(data)


@given(tail=st.binary(max_size=400), count=st.integers(0, 2**64 - 1), table=st.integers(0, 2**64 - 1))
def test_any_bytes_behind_a_header(tail, count, table):
    read_everything(struct.pack("<IBBHQQQQ", 0x00A1CD7C, 0, 1, 1, 40 + len(tail), 0, count, table) + tail)


CPU_PROGRAM = container(
    program(
        constants=bytes(64),
        graph=b"\x08\x08",
        plan={
            "version": 1,
            "target": "cpu",
            "batch": 1,
            "cores": 1,
            "inputs": [],
            "outputs": [],
            "options": {"a": 1},
            "initializers": [{"name": "w", "dtype": "float32", "dims": [16], "offset": 0, "size": 64}],
        },
    )
)
SEEDS = [path.read_bytes() for path in [*FIXTURES, *sorted((DATA / "hostile").glob("*.qpc"))]] + [CPU_PROGRAM]


@given(
    seed=st.sampled_from(SEEDS),
    edits=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=8),
    cut=st.none() | st.integers(0, 1 << 14),
)
@example(seed=CPU_PROGRAM, edits=[(0, CPU_PROGRAM[0])], cut=None)
def test_mutated_containers(seed, edits, cut):
    data = bytearray(seed)
    for position, value in edits:
        data[position % len(data)] = value
    if cut is not None:
        del data[cut:]
        if len(data) >= 16:
            # The length is corrected, so the other defect is the only one.
            data[8:16] = len(data).to_bytes(8, "little")
    read_everything(bytes(data))


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_descriptor_and_any_plan(descriptor, plan):
    segments = [segment for segment in program(plan=plan) if segment[0] != "networkdesc.bin"]
    read_everything(container([*segments, ("networkdesc.bin", descriptor, 0)]))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "version": JSON,
            "target": JSON,
            "producer": JSON,
            "inputs": JSON,
            "options": JSON,
            "effective": JSON,
            "initializers": st.lists(
                st.fixed_dictionaries(
                    {"name": st.text(max_size=4) | JSON},
                    optional={"dtype": st.sampled_from(["float32", "int4", "bfloat16"]) | JSON}
                    | dict.fromkeys(
                        ["dims", "offset", "size"], st.lists(st.integers(-1, 9), max_size=3) | JSON
                    ),
                ),
                max_size=3,
            )
            | JSON,
        },
    )
)
def test_any_plan_values(plan):
    read_everything(container(program(plan=plan, constants=bytes(32))))


@given(st.lists(NAMES, unique=True, max_size=20))
def test_file_names_are_distinct_and_stay_where_they_are_put(names):
    files = file_names(names)
    assert list(files) == names
    assert len(set(files.values())) == len(names)
    for file in files.values():
        assert len(Path(file).parts) == 1
        assert len(file.encode()) <= 250
        assert not file.startswith(".")
        assert not set(file) & set("/\\\0")
