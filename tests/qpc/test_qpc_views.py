"""Views are pages of the file: no copy, read-only, independent of other objects; opening a file is cheap."""

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

from qaic.errors import QpcFormatError
from qaic.qpc import Qpc
from qpc_support import container, head, program

# Files of 1 MiB or more are mapped.
LARGE = 2 << 20
PLAN = {
    "version": 1,
    "target": "cpu",
    "initializers": [{"name": "w", "dtype": "float32", "dims": [LARGE // 4], "offset": 0, "size": LARGE}],
}


@pytest.fixture
def large(tmp_path):
    path = tmp_path / "large.qpc"
    constants = np.arange(LARGE // 4, dtype=np.float32)
    path.write_bytes(container(program(constants=constants.tobytes(), plan=PLAN), alignment=64))
    return path


def mapped_ranges(path) -> list[range]:
    ranges = []
    with Path("/proc/self/maps").open() as maps:
        for line in maps:
            if line.rstrip().endswith(str(path)):
                start, end = line.split()[0].split("-")
                ranges.append(range(int(start, 16), int(end, 16)))
    return ranges


def address(array) -> int:
    return array.__array_interface__["data"][0]


def views_of(qpc) -> dict:
    return {
        "segment": qpc.segments["constants.bin"].data,
        "static": qpc.constants.static,
        "initializer": qpc.initializers["w"],
    }


@pytest.mark.parametrize("kind", ["segment", "static", "initializer"])
def test_views_lie_in_the_mapping(large, kind):
    qpc = Qpc(large)
    view = views_of(qpc)[kind]
    (mapping,) = mapped_ranges(large)
    assert address(view) in mapping
    assert address(view) - mapping.start == qpc.segments["constants.bin"].start
    assert np.shares_memory(view, qpc.segments["constants.bin"].data)
    assert view.nbytes == LARGE


def test_two_views_are_the_same_memory(large):
    qpc = Qpc(large)
    first, second = (qpc.segments["network.elf"].data for _ in range(2))
    assert address(first) == address(second)


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("kind", ["segment", "static", "initializer"])
def test_views_cannot_be_written(large, kind, mmap):
    view = views_of(Qpc(large, mmap=mmap))[kind]
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    with pytest.raises(ValueError, match=r"WRITEABLE|writable"):
        view.flags.writeable = True
    assert memoryview(view.base).readonly


def test_views_outlive_the_container(large):
    qpc = Qpc(large)
    gone = weakref.ref(qpc)
    view = qpc.initializers["w"]
    del qpc
    gc.collect()
    assert gone() is None
    assert mapped_ranges(large)
    assert view.sum(dtype=np.float64) == np.arange(LARGE // 4, dtype=np.float64).sum()
    del view
    assert not mapped_ranges(large)


def test_a_view_keeps_the_file_that_was_replaced(large):
    view = Qpc(large).initializers["w"]
    large.unlink()
    large.write_bytes(b"something else")
    assert view[-1] == LARGE // 4 - 1


def test_views_are_counted_once(large):
    qpc = Qpc(large)
    segment = qpc.segments["constants.bin"]
    count = sys.getrefcount(qpc._core)
    views = [segment.data for _ in range(100)]
    # Counted outside the assertion, which holds a reference.
    with_views = sys.getrefcount(qpc._core)
    assert with_views == count
    del views, segment, qpc
    assert not mapped_ranges(large)


def test_without_mmap_nothing_is_mapped(large):
    qpc = Qpc(large, mmap=False)
    assert not mapped_ranges(large)
    assert np.array_equal(qpc.initializers["w"], np.arange(LARGE // 4, dtype=np.float32))
    large.write_bytes(b"")
    assert qpc.initializers["w"][5] == 5


def test_a_failed_open_keeps_nothing_mapped(large):
    with large.open("r+b") as file:
        file.write(b"\0")
    with pytest.raises(QpcFormatError):
        Qpc(large)
    gc.collect()
    assert not mapped_ranges(large)


def test_empty_payloads():
    qpc = Qpc(container(program(extra=[("empty", b"")])))
    for view in (qpc.segments["empty"].data, qpc.constants.static, qpc.constants.dynamic):
        assert view.shape == (0,)
        assert view.dtype == np.uint8
        assert not view.flags.writeable


def test_no_constants():
    segments = [segment for segment in program() if segment[0] != "constants.bin"]
    qpc = Qpc(container(segments))
    assert qpc.constants.static is None
    assert qpc.constants.dynamic is None
    assert dict(qpc.initializers) == {}


OPEN_AND_MEASURE = """
import sys
import qaic
from qaic.qpc import Qpc

def resident_bytes():
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024

Qpc(sys.argv[1])  # what the first use of anything loads
before = resident_bytes()
qpc = Qpc(sys.argv[2])
weights = qpc.initializers["w"]
assert weights.nbytes == 1 << 30, weights.nbytes
assert qpc.constants.static.nbytes == 1 << 30
assert weights[-1] == 0
print(resident_bytes() - before)
"""


def test_opening_a_gigabyte_costs_no_memory(tmp_path, large):
    size = 1 << 30
    record = {"name": "w", "dtype": "float32", "dims": [size // 4], "offset": 0, "size": size}
    small = program(plan={"version": 1, "target": "cpu", "initializers": [record]})
    small[1] = ("constantsdesc.bin", size.to_bytes(8, "little") + bytes(16), 0)
    # The constants are last, so the file consists of the other segments and a hole.
    order = [*small[1:], ("constants.bin", None, size)]
    start, places = head(
        [(name, size if payload is None else len(payload), offset) for name, payload, offset in order],
        alignment=64,
    )
    path = tmp_path / "sparse.qpc"
    with path.open("wb") as file:
        file.write(start)
        for (_, payload, _), place in zip(order, places, strict=False):
            if payload is not None:
                file.seek(place)
                file.write(payload)
        file.truncate(places[-1])
    assert path.stat().st_blocks * 512 < 1 << 20
    command = [sys.executable, "-c", OPEN_AND_MEASURE, str(large), str(path)]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown < 5 << 20
