"""Layouts of other packages in Python: registered, or entry points of an installed package."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

import stats_buffers as made
from qaic import stats
from qaic.errors import StatsError, StatsFormatError, UnknownStatsLayoutError
from qaic.stats import layouts

MAGIC = b"LINES\n\0\0"


class Lines:
    """Eight bytes per operation: number and ticks, for one thread of one core."""

    name = "lines"

    def probe(self, buffer, descriptor):
        if buffer[:8].tobytes() == MAGIC:
            return "yes"
        return "maybe" if len(buffer) % 8 == 0 else "no"

    def decode(self, buffer, descriptor):
        body = buffer[8:] if buffer[:8].tobytes() == MAGIC else buffer
        lines = body.view(np.dtype([("oc", "<u4"), ("dur_u", "<u4")]))
        start = 1 << 40
        ops = np.zeros(len(lines), np.dtype([("oc", "<u4"), ("start_u", "<u8"), ("dur_u", "<u4")]))
        ops["oc"], ops["dur_u"] = lines["oc"], lines["dur_u"]
        ends = start + np.cumsum(lines["dur_u"], dtype=np.uint64)
        ops["start_u"] = ends - lines["dur_u"]
        core = np.array([(start, ends[-1])], [("start_u", "<u8"), ("end_u", "<u8")])
        thread = np.zeros(1, stats.RECORDS["THREAD"])
        thread["start_u"], thread["end_u"], thread["op_count"] = start, ends[-1], len(lines)
        facts = {"cores": 1, "threads_per_core": 1, "ucycle_hz": 19_200_000, "device": 2, "batch_size": 1}
        return facts, {"CORE": core, "THREAD": thread, "OP": ops, "META": b'{"producer": "lines"}'}


BODY = np.array([7, 10, 8, 20], "<u4").tobytes()


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(layouts, "_registered", {})
    monkeypatch.setattr(layouts, "_loaded_entry_points", False)


def test_a_layout_that_is_sure_is_taken(tmp_path):
    stats.register_layout(Lines())
    path = tmp_path / "lines.bin"
    path.write_bytes(MAGIC + BODY)
    for source in (path, MAGIC + BODY, bytearray(MAGIC + BODY)):
        buffer = stats.open(source, check=True)
        assert buffer.layout == "lines"
        assert buffer.ops.dtype == stats.RECORDS["OP"]
        assert buffer.ops["oc"].tolist() == [7, 8]
        assert buffer.ops["dur_u"].tolist() == [10, 20]
        assert buffer.run.device_name == "AI 100"
        assert buffer.meta == {"producer": "lines"}
        assert buffer.warnings == ()
        assert not buffer.ops.flags.writeable


def test_a_layout_that_guesses_is_taken_by_name_only():
    stats.register_layout(Lines())
    with pytest.raises(UnknownStatsLayoutError):
        stats.open(BODY)
    assert len(stats.open(BODY, layout="lines").ops) == 2


def test_the_open_layout_comes_first():
    class Greedy(Lines):
        name = "greedy"

        def probe(self, buffer, descriptor):
            return "yes"

    stats.register_layout(Greedy())
    assert stats.open(made.even_buffer(3)).layout == "oqstats"
    assert stats.open(made.even_buffer(3), layout="oqstats").layout == "oqstats"


def test_descriptors_are_checked_as_for_all_layouts():
    stats.register_layout(Lines())
    descriptor = stats.Descriptor.from_json(made.descriptor_json([8]))
    with pytest.raises(StatsFormatError) as caught:
        stats.open(MAGIC + BODY, qpc=descriptor, check=True)
    assert caught.value.code == "stats.unknown_op"
    assert stats.open(MAGIC + BODY, qpc=descriptor, force=True, check=True).descriptor is descriptor


def test_unknown_layout_name_is_refused_with_the_known_names():
    stats.register_layout(Lines())
    with pytest.raises(StatsError, match="known: oqstats, lines") as caught:
        stats.open(BODY, layout="card")
    assert caught.value.code == "stats.unknown_layout_name"


def of(sections, **facts):
    class Made(Lines):
        def decode(self, buffer, descriptor):
            return {"cores": 1, "threads_per_core": 1, **facts}, sections

    return Made()


CORE = np.zeros(1, stats.RECORDS["CORE"])
THREAD = np.zeros(1, stats.RECORDS["THREAD"])


@pytest.mark.parametrize(
    ("layout", "code", "words"),
    [
        (of({"CORE": CORE, "THREAD": THREAD}, speed=1), "stats.layout", "speed"),
        (of({"CORE": CORE, "THREADS": THREAD}), "stats.layout", "THREADS"),
        (of({"CORE": CORE.reshape(1, 1), "THREAD": THREAD}), "stats.layout", "one dimension"),
        (of({"CORE": CORE, "THREAD": np.zeros(64, np.uint8)}), "stats.layout", "structured"),
        (of({"CORE": np.zeros(1, [("speed", "<u8")])}), "stats.layout", "speed"),
        (of({"CORE": np.array([(-5,)], [("start_u", "<i8")])}), "stats.layout", "start_u .* int64"),
        (of({"CORE": np.array([(np.nan,)], [("start_u", "<f8")])}), "stats.layout", "start_u .* float64"),
        (of({"CORE": np.array([(1 << 16,)], [("core", "<u4")])}), "stats.layout", "core .* uint32"),
        (of({"CORE": np.array([("5",)], [("start_u", "U1")])}), "stats.layout", "start_u .* <U1"),
        (of({"CORE": CORE}), "stats.thread_count", "THREAD"),
        (of({"CORE": CORE, "THREAD": THREAD}, cores=2), "stats.core_count", "CORE"),
        (of({"CORE": CORE, "THREAD": THREAD}, cores=-1), "stats.layout", "OverflowError"),
        (of(None), "stats.layout", "NoneType"),
    ],
)
def test_what_a_layout_gives_is_checked(layout, code, words):
    stats.register_layout(layout)
    with pytest.raises(StatsFormatError, match=words) as caught:
        stats.open(MAGIC)
    assert caught.value.code == code


def test_a_layout_that_fails_to_probe_does_not_keep_others_from_reading():
    class Broken(Lines):
        name = "broken"

        def probe(self, buffer, descriptor):
            raise ZeroDivisionError

    stats.register_layout(Broken())
    stats.register_layout(Lines())
    with pytest.warns(UserWarning, match="broken failed to probe"):
        assert stats.open(MAGIC + BODY).layout == "lines"


@pytest.mark.parametrize("value", [None, object(), type("Nameless", (Lines,), {"name": 3})()])
def test_what_is_no_layout_is_refused(value):
    with pytest.raises(StatsError) as caught:
        stats.register_layout(value)
    assert caught.value.code == "stats.not_a_layout"


def test_the_name_of_the_open_layout_is_taken():
    with pytest.raises(StatsError, match="another name"):
        stats.register_layout(type("Mine", (Lines,), {"name": "oqstats"})())


def test_installed_packages_are_asked(tmp_path):
    (tmp_path / "card_layout.py").write_text(
        textwrap.dedent("""
        class Layout:
            name = "card"
            def probe(self, buffer, descriptor):
                return "yes" if bytes(buffer[:4]) == b"CARD" else "no"
            def decode(self, buffer, descriptor):
                raise ValueError("read by the package")
        """)
    )
    info = tmp_path / "card_layout-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: card-layout\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[qaic.stats_layouts]\ncard = card_layout:Layout\nbroken = card_layout:Nothing\n"
    )
    script = """
import sys, warnings
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore")
from qaic import stats
from qaic.errors import StatsFormatError
try:
    stats.open(b"CARD1234")
except StatsFormatError as error:
    print(error.code, error.message)
print(*stats.layouts.registered())
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == ["stats.layout layout card: ValueError: read by the package", "card"]
