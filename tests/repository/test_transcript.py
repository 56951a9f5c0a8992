"""``tools/transcript`` lists and compares recorded calls, and refuses other files with the line number."""

import copy
import json
import struct
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import session_models
from child_process import run_script
from qaic.cli import console
from transcript import __main__ as transcript
from transcript.diff import compare
from transcript.lines import VOLATILE, Line, normalized, read

SAMPLE = Path(__file__).parents[1] / "data" / "transcripts" / "run.jsonl"
HEADER = {"seq": 0, "name": "HEADER", "fields": {"version": 1}, "errno": None}
SEM = {"val": 0, "index": 0, "presync": 0, "cmd": 0, "flags": 0, "pad": 0}


def run(*argv):
    return console.run(transcript.tool, [*map(str, argv)])


@pytest.fixture
def write(tmp_path):
    """Write calls after a header; return the path."""

    def written(name, *calls):
        lines = [HEADER, *({"seq": seq, **call} for seq, call in enumerate(calls, 1))]
        path = tmp_path / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return written


def call(name, fields=None, *, answer=None, file=0, errno=None, **octets):
    return {
        "name": name,
        "file": file,
        "fields": fields or {},
        "answer": answer or {},
        "errno": errno,
        **octets,
    }


def execute(handle):
    return call("EXECUTE_BO", {"count": 1, "dbc_id": 3, "entries": [{"handle": handle, "dir": 1}]})


def sample_lines():
    return [json.loads(line) for line in SAMPLE.read_text().splitlines()]


def test_a_transcript_is_the_same_as_itself(capsys):
    assert run("diff", SAMPLE, SAMPLE) == 0
    assert capsys.readouterr().out == "no difference in 23 calls\n"


def test_another_process_makes_the_same_calls(write, tmp_path, capsys):
    """Values that belong to one process do not affect a recording that contains all of them."""

    def changed(lines):
        for line in lines:
            for side in ("fields", "answer"):
                raise_volatile(line.get(side, {}))
            if line["name"] == "MANAGE":
                line["data"] = with_process(bytes.fromhex(line["data"])).hex()
            if "raw" in line:
                line["raw"] = "ff" * (len(line["raw"]) // 2)
        return lines

    def raise_volatile(value):
        if isinstance(value, dict):
            for key, item in value.items():
                if item == "*":
                    value[key] = 0x1234
                raise_volatile(item)
        elif isinstance(value, list):
            for item in value:
                raise_volatile(item)

    def with_process(message):
        """Ids, addresses and descriptors at the offsets of the control protocol (docs/reference/card.md)."""
        message = bytearray(message)
        at = 0
        while at < len(message):
            kind, length = struct.unpack_from("<II", message, at)
            if kind == 1:
                command = struct.unpack_from("<I", message, at + 8)[0]
                offset = {3: 8}.get(command, 4)
                if command not in {5, 7, 11, 13, 30, 34, 36}:
                    struct.pack_into("<I", message, at + 8 + offset, 4711)
            elif kind == 5:
                struct.pack_into("<Q", message, at + 16, 0x7FFF_0000_1000)
            elif kind == 7:
                struct.pack_into("<I", message, at + 12, 9)
            at += length
        return bytes(message)

    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps(line) + "\n" for line in changed(sample_lines())))
    assert other.read_text() != SAMPLE.read_text()
    assert run("diff", SAMPLE, other) == 0
    assert "no difference" in capsys.readouterr().out


def test_what_a_terminal_would_act_upon_is_shown_by_its_escape(write, capsys):
    hostile = call("\x1b[2J", {"na\nme": "\x1b]0;owned\x07"}, errno="E\rX")
    a, b = write("a.jsonl", hostile), write("b.jsonl", call("\x1b[2J", {"na\nme": "\u202e"}))
    assert run("show", a) == 0
    shown = capsys.readouterr().out
    assert "\\x1b[2J na\\nme=\\x1b]0;owned\\x07 -> E\\rX" in shown
    assert run("diff", a, b) == 1
    shown += capsys.readouterr().out
    assert "\\u202e" in shown
    assert all(letter == "\n" or letter.isprintable() for letter in shown)


def test_fields_errors_and_bytes_that_differ_are_named(tmp_path, capsys):
    lines = sample_lines()
    numbers = {line["name"]: line["seq"] for line in lines}
    for line in lines:
        if line["name"] == "ATTACH_SLICE_BO":
            line["fields"]["entries"][0]["sem1"]["flags"] = 1
        if line["name"] == "WAIT_BO":
            line["errno"] = "ETIMEDOUT"
        if line["name"] == "MMAP_BO":
            # The kernel selected the offset.
            line["answer"]["offset"] = 1
        if line["name"] == "PERF_STATS_BO":
            line["answer"]["entries"][0]["submit_latency_us"] = 99
            line["answer"]["entries"][0]["num_queue_element"] = 98
        if line["name"] == "MANAGE" and line["data"].startswith("0100000018"):
            # The bytes after the command, which have no names.
            line["data"] = line["data"][:-2] + "ab"
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run("diff", SAMPLE, other) == 1
    status = next(line["seq"] for line in lines if line["name"] == "MANAGE")
    attach, wait, stats = (numbers[name] for name in ("ATTACH_SLICE_BO", "WAIT_BO", "PERF_STATS_BO"))
    assert capsys.readouterr().out.splitlines() == [
        "4 differences in 23 and 23 calls; A | B",
        "file 0",
        f"  {status} | {status}  MANAGE status, data[23]: 0 | 171",
        f"  {attach} | {attach}  ATTACH_SLICE_BO, entries[0].sem1.flags: 2 | 1",
        f"  {wait} | {wait}  WAIT_BO, errno: none | ETIMEDOUT",
        f"  {stats} | {stats}  PERF_STATS_BO, answer.entries[0].num_queue_element: 3 | 98",
    ]


def test_calls_that_one_side_has_do_not_shift_the_others(write, capsys):
    calls = [execute(handle) for handle in range(1, 9)]
    waits = [call("WAIT_BO", {"handle": handle}) for handle in range(1, 9)]
    pairs = [line for pair in zip(calls, waits, strict=True) for line in pair]
    detach = call("DETACH_SLICE_BO", {"handle": 1})
    a = write("a", *pairs[:6], detach, *pairs[6:])
    b = write("b", *pairs[:10], detach, detach, *pairs[10:])
    assert run("diff", a, b) == 1
    assert capsys.readouterr().out.splitlines() == [
        "3 differences in 17 and 18 calls; A | B",
        "file 0",
        "  7 | -  DETACH_SLICE_BO: only in A",
        "  - | 11  DETACH_SLICE_BO: only in B",
        "  - | 12  DETACH_SLICE_BO: only in B",
    ]


def test_files_are_compared_each_for_itself(write, capsys):
    one = [execute(handle) for handle in (1, 2)]
    two = [{**execute(handle), "file": 1} for handle in (3, 4)]
    event = {"name": "EVENT", "fields": {"node": "accel0", "kind": "Offline"}, "errno": None}
    assert run("diff", write("a", *one, *two), write("b", two[0], one[0], event, two[1], one[1])) == 0
    assert run("diff", write("a", *one, *two), write("b", *one)) == 1
    assert "file 1" in capsys.readouterr().out


class TestTheOpenRuntime:
    """``--lrt`` omits the differences that docs/reference/card.md lists, and no others."""

    def attach(self, handle, flags, size=4096):
        entry = {"size": size, **{f"sem{index}": {**SEM, "cmd": 6, "flags": flags} for index in range(4)}}
        return call("ATTACH_SLICE_BO", {"handle": handle, "size": size, "entries": [entry]})

    def create(self, size, handle):
        return call("CREATE_BO", {"size": size, "handle": 0}, answer={"size": size, "handle": handle})

    def partial(self, *resizes):
        entries = [{"handle": index, "dir": 1, "resize": resize} for index, resize in enumerate(resizes, 1)]
        return call("PARTIAL_EXECUTE_BO", {"count": len(entries), "entries": entries})

    def test_fence_flags_are_the_other_way_round(self, write, capsys):
        a, b = write("a", self.attach(1, 2)), write("b", self.attach(1, 1))
        assert run("diff", a, b) == 1
        assert run("diff", "--lrt", a, b) == 0
        assert "left out: T1 4" in capsys.readouterr().out
        # The same bits have another meaning.
        assert run("diff", "--lrt", a, a) == 1

    def test_whole_transfers_are_written_as_0_or_not_at_all(self, write, capsys):
        created = [self.create(4096, 1), self.create(8192, 2)]
        ours = [*created, self.partial(100, 8192), self.partial(4096, 8192)]
        a = write("a", *ours)
        assert run("diff", "--lrt", a, write("b", *created, self.partial(100, 0), self.partial(100, 0))) == 0
        assert "left out: T3/T15 3" in capsys.readouterr().out
        # A part that does not remain from an earlier call, and a part in place of a complete transfer of
        # another size.
        assert run("diff", "--lrt", a, write("b", *created, self.partial(100, 0), self.partial(99, 0))) == 1
        assert "[0].resize: 4096 | 99" in capsys.readouterr().out
        wrong = write("a", *created, self.partial(100, 50), self.partial(4096, 8192))
        assert (
            run("diff", "--lrt", wrong, write("b", *created, self.partial(100, 0), self.partial(100, 0))) == 1
        )
        assert "[1].resize: 50 | 0" in capsys.readouterr().out

    def test_buffer_objects_without_bytes(self, write, capsys):
        ours = [self.create(4096, 1), self.attach(1, 0), call("MAP", {"offset": 1, "len": 4096})]
        theirs = [self.create(0, 1), self.attach(1, 0, size=0), call("MAP", {"offset": 5, "len": 0})]
        theirs[1]["fields"]["entries"] = ours[1]["fields"]["entries"]
        a = write("a", *ours)
        assert run("diff", "--lrt", a, write("b", *theirs)) == 0
        assert "left out: T4 3" in capsys.readouterr().out
        refused = {**self.create(0, 0), "answer": {}, "errno": "EINVAL"}
        assert run("diff", "--lrt", a, write("b", refused, *theirs[1:])) == 0
        assert run("diff", a, write("b", *theirs)) == 1
        # A transfer of two pages never corresponds to an empty one.
        assert run("diff", "--lrt", write("a", self.create(8191, 1)), write("b", self.create(0, 1))) == 1

    def test_the_padding_of_data_for_the_card(self, write, capsys):
        def load(pad, tag=100):
            dma = {"type": "dma_from_user", "tag": tag, "pad": pad, "addr": "*", "size": 9}
            data = struct.pack("<IIIIQQ", 5, 32, tag, pad, 0, 9)
            return call("MANAGE", {"len": 32, "count": 1, "transactions": [dma]}, data=data.hex())

        a = write("a", load(1))
        assert run("diff", a, write("b", load(7))) == 1
        assert run("diff", "--lrt", a, write("b", load(7))) == 0
        assert "left out: T5 1" in capsys.readouterr().out
        assert run("diff", "--lrt", a, write("b", load(7, tag=101))) == 1


def test_calls_are_listed(capsys):
    assert run("show", SAMPLE) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(sample_lines())
    (load,) = [line for line in lines if "load_elf" in line]
    assert "MANAGE load_elf+dma_from_user" in load
    assert "tag=100" in load
    assert "crc32=" in load
    assert "elf_id=77" in load.split("->")[1]
    assert [line.split("->")[1].strip() for line in lines if "EXECUTE_BO" in line and "EAGAIN" in line] == [
        "EAGAIN"
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "is empty; a transcript begins with a HEADER"),
        ("{", "line 1: is not JSON"),
        ("[1]", "line 1: is not a JSON object"),
        ("\udc80", "line 1: is no UTF-8"),
        ("[" * 100_000, "line 1: is not JSON"),
        ('{"seq":0}', "line 1: has no name"),
        ('{"seq":true,"name":"HEADER"}', "line 1: seq is True, expected int"),
        ('{"seq":0,"name":"WAIT_BO"}', "line 1: expected one HEADER, and first"),
        ('{"seq":0,"name":"HEADER","fields":{"version":2}}', "form 2 found, 1 expected"),
        (json.dumps(HEADER) + "\n\n", "line 2: is not JSON"),
        (json.dumps(HEADER) + "\n" + json.dumps(HEADER), "line 2: expected one HEADER, and first"),
        (json.dumps(HEADER) + '\n{"seq":1,"name":"MAP","raw":"zz"}', "line 2: non-hexadecimal number"),
        (json.dumps(HEADER) + '\n{"seq":1,"name":"MAP","fields":[]}', "line 2: fields is [], expected dict"),
        (json.dumps({**HEADER, "answer": {"": json.loads("[" * 20 + "]" * 20)}}), "line 1: is nested too"),
    ],
)  # fmt: skip
def test_what_is_no_transcript_is_refused_by_line(text, error, tmp_path, capsys):
    bad = tmp_path / "bad.jsonl"
    bad.write_text(text, errors="surrogateescape")
    assert run("diff", SAMPLE, bad) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith(f"error: {bad}")
    assert error in line
    assert run("show", bad) == 2


def test_each_bad_file_has_its_error(tmp_path, capsys):
    missing, folder = tmp_path / "missing", tmp_path
    assert run("diff", missing, folder) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"error: {missing}: No such file or directory"
    assert second == f"error: {folder} is no regular file; a transcript is expected"
    with pytest.raises(SystemExit) as ended:
        run("diff", missing)
    assert ended.value.code == 2


NAMES = [
    "entries",
    "transactions",
    "handle",
    "size",
    "resize",
    "sem0",
    "flags",
    "type",
    "pad",
    "command",
    "data",
]
scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5)


def around(inner):
    """Return values that can contain some of the given values."""
    return scalars | st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)


# The depth of a flag of a semaphore of an entry.
json_values = around(around(around(scalars)))
mappings = st.dictionaries(
    st.sampled_from(["entries", "transactions", "handle", "size", "len"]),
    json_values | st.lists(around(around(scalars)), max_size=3),
    max_size=4,
)
hostile_lines = st.lists(
    st.builds(
        Line,
        seq=st.integers(0, 9),
        name=st.sampled_from(
            ["MANAGE", "CREATE_BO", "ATTACH_SLICE_BO", "PARTIAL_EXECUTE_BO", "MAP", "VERSION", "0x1"]
        ),
        file=st.none() | st.integers(0, 1),
        fields=mappings,
        answer=mappings,
        errno=st.none() | st.just("EAGAIN"),
        octets=st.dictionaries(
            st.sampled_from(["raw", "data", "reply", "data_reply"]), st.binary(max_size=40), max_size=4
        ),
    ),
    max_size=6,
)


@given(hostile_lines, hostile_lines, st.booleans())
@settings(max_examples=40, deadline=None)
def test_anything_can_be_compared(a, b, lrt):
    comparison = compare(a, b, lrt=lrt)
    assert comparison.calls_a == len(a)
    assert comparison.calls_b == len(b)
    assert compare(a, copy.deepcopy(a)).differences == []
    assert bool(compare(a, b).differences) == bool(compare(b, a).differences)


@given(hostile_lines)
@settings(max_examples=40, deadline=None)
def test_normalizing_twice_is_normalizing_once(lines):
    for line in lines:
        once = normalized(line)
        assert normalized(once) == once


@given(
    st.lists(st.integers(0, 3), max_size=80),
    st.lists(st.integers(0, 3), max_size=80),
)
@settings(max_examples=100, deadline=None)
def test_compare_of_any_two_transcripts_reports_each_call_once(a, b):
    """No call is lost in any order: pairs have one kind, and all other calls are reported as only in one
    file.
    """

    def lines(kinds):
        return [Line(seq=seq, name=f"CALL{kind}", file=0) for seq, kind in enumerate(kinds)]

    found = compare(lines(a), lines(b)).differences
    alone_a = [item.seq_a for item in found if item.seq_b is None]
    alone_b = [item.seq_b for item in found if item.seq_a is None]
    assert len(found) == len(alone_a) + len(alone_b)
    rest_a = [kind for seq, kind in enumerate(a) if seq not in alone_a]
    rest_b = [kind for seq, kind in enumerate(b) if seq not in alone_b]
    assert rest_a == rest_b


def test_what_is_volatile_is_left_out_of_what_is_compared():
    manage = next(line for line in read(str(SAMPLE)) if line.name == "MANAGE")
    line = Line(seq=1, name="MANAGE", fields={"data": 5, "transactions": [{"process_id": 7, "elf_id": 7}]})
    assert normalized(line).fields == {
        "data": VOLATILE,
        "transactions": [{"process_id": VOLATILE, "elf_id": 7}],
    }
    assert normalized(manage) == manage


RUN = """
import sys
import numpy as np
import qaic

with qaic.Session(sys.argv[1], num_activations=1) as session:
    for value in map(float, sys.argv[2:]):
        print(session.run({"x": np.full(4, value, np.float32)})["y"].tolist())
"""


def test_a_session_on_an_emulated_card_is_recorded_and_compared(tmp_path, capsys, monkeypatch):
    doubled = session_models.model(
        [onnx.helper.make_node("Add", ["x", "x"], ["y"])], [("x", "float32", [4])], [("y", "float32", [4])]
    )
    onnx.save(doubled, tmp_path / "model.onnx")

    def session(*values, transcript):
        monkeypatch.setenv("QAIC_KMD", "emu")
        monkeypatch.setenv("QAIC_KMD_TRANSCRIPT", str(transcript))
        return run_script(RUN, tmp_path / "model.onnx", *values, device="kmd").stdout.splitlines()

    answers = ["[2.0, 2.0, 2.0, 2.0]", "[6.0, 6.0, 6.0, 6.0]"]
    assert session(1, 3, transcript=tmp_path / "a.%p.jsonl") == answers
    (a,) = tmp_path.glob("a.*.jsonl")
    b, c = tmp_path / "b.jsonl", tmp_path / "c.jsonl"
    assert session(1, 3, transcript=b) == answers
    assert session(1, transcript=c) == answers[:1]

    assert run("diff", a, b) == 0
    assert capsys.readouterr().out.startswith("no difference in ")
    assert run("diff", a, c) == 1
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[-1] for line in printed[2:]] == ["EXECUTE_BO: only in A", "WAIT_BO: only in A"]
    assert run("show", a) == 0
    assert capsys.readouterr().out.count("EXECUTE_BO") == 2
