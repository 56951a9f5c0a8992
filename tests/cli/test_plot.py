"""``openqaic plot`` recognizes each kind of file by its contents, and draws or prints it."""

import contextlib
import copy
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stats_buffers
from qaic.cli import console, openqaic, runner
from session_models import affine, save

LATENCY = """\
Inference latency
Program 0: net
Activations 1, Set size 1, Cores 1, Batch size 1

Sample, devInfPerSec, enqTimeUs, preProcTimeUs, execTotalUs, postProcUs, totalRoundtripTimeUs, queueDepth
"""
ROWS = [(number, 100 + number) for number in range(50)]
TRACE = [
    {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "HOST <b>"}},
    {"name": "device", "ph": "X", "ts": 0, "dur": 250, "pid": 1, "tid": 1, "args": {}},
    {"name": "post", "ph": "X", "ts": 250, "dur": 750, "pid": 1, "tid": 1, "args": {}},
]
METRICS = {
    "num_of_inferences": 9, "min_latency": 0.001, "max_latency": 0.9, "P25": 0.0011, "P50": 0.0012,
    "P75": 0.0013, "P90": 0.002, "P99": 0.01, "P999": 0.8, "total_inference_time": 0.3, "avg_latency": 0.003,
}  # fmt: skip


def run(*argv):
    return console.run(openqaic.tool, ["plot", *map(str, argv)])


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    """Set the width of lines, which otherwise is that of the terminal that started the tests."""
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def files(tmp_path):
    rows = "".join(f"{number}, N/A, 1.0, 2.0, {total - 5}, 2.0, {total}.000, 0\n" for number, total in ROWS)
    (tmp_path / "latency.txt").write_text(LATENCY + rows)
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": TRACE}))
    (tmp_path / "metrics.json").write_text(json.dumps(METRICS))
    (tmp_path / "bench.json").write_text(json.dumps(BENCH))
    (tmp_path / "stats.bin").write_bytes(stats_buffers.even_buffer(20, cores=2))
    return tmp_path


def test_figures_in_the_terminal(files, capsys):
    assert run(files / "latency.txt") == 0
    text = capsys.readouterr().out
    assert "Latency of 50 inferences" in text
    assert "124 us" in text
    assert text.count("#") > 20
    assert "\n\n== Time of the host ==" in text
    assert "\n\n\n" not in text

    assert run(files / "trace.json") == 0
    text = capsys.readouterr().out
    assert text.startswith("== Figures ==\n")
    assert "process 1 HOST <b>       2" in text
    assert "post         1      750     75.0" in text
    assert " more" not in text

    events = [TRACE[0], *({**TRACE[1], "name": f"span{place}", "ts": place} for place in range(60))]
    (files / "long.json").write_text(json.dumps({"traceEvents": events}))
    assert run(files / "long.json") == 0
    assert "  ... and 20 more; see -o page.html\n" in capsys.readouterr().out
    assert run(files / "long.json", "-o", files / "page.html") == 0
    capsys.readouterr()
    assert all(f">span{place}</td>" in (files / "page.html").read_text() for place in range(60))

    assert run(files / "metrics.json") == 0
    text = capsys.readouterr().out
    assert "Latency of 9 runs" in text
    assert "P99.9" in text

    assert run(files / "stats.bin") == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("hint: --qpc takes the container of the buffer")
    assert "Key figures" in shown.out


def measurement(samples_us, **more):
    return {"latency": {"count": len(samples_us), "samples_us": samples_us}, **more}


BENCH = {
    "program": {"path": "p"},
    "measurements": [
        measurement([10.0, 20.0, 30.0], runtime="openqaic", streams=1, inferences_per_s=5e4),
        measurement([100.0] * 40, runtime="onnxruntime", streams=1, inferences_per_s=1e4),
        measurement([7.0], runtime="openqaic", streams=1, inferences_per_s=2e4),
    ],
}
RUN = {
    "program": "p",
    "activations": 2,
    "in_flight": 4,
    "inferences_per_second": 123.0,
    **measurement([1000.0, 3000.0]),
}


def test_measurements_of_bench_and_runner_are_drawn(tmp_path, capsys):
    """Regression: they were refused as no trace."""
    for name, content in (("bench.json", BENCH), ("runner.json", RUN)):
        (tmp_path / name).write_text(json.dumps(content, indent=1))
    assert run(tmp_path / "bench.json") == 0
    text = capsys.readouterr().out
    assert "== openqaic, 1 stream ==\nLatency of 3 inferences\n" in text
    assert "== openqaic, 1 stream (3) ==\nLatency of 1 inference\n" in text
    assert re.search(r"onnxruntime, 1 stream +10,000 +40 +100 +100 +100 +100 +100\n", text)
    assert run(tmp_path / "runner.json") == 0
    text = capsys.readouterr().out
    assert text.startswith("Latency of 2 inferences\n  min    1.00 ms\n")
    assert re.search(r"2 activations, 4 in flight +123 +2 +1,000 +2,000 ", text)

    page = tmp_path / "page.html"
    assert run(tmp_path / "bench.json", "-o", page) == 0
    text = page.read_text()
    # One inference has no distribution.
    assert re.findall(r"<section id=\"([^\"]+)\".*?</section>", text, re.DOTALL) == [
        "measurements", "measurement-0", "measurement-1", "measurement-2",
    ]  # fmt: skip
    assert text.count("<svg") == 6
    assert run(tmp_path / "runner.json", "-o", page) == 0
    assert page.read_text().count("<svg") == 3


def test_results_that_the_commands_write_are_drawn(tmp_path, capsys):
    model = save(tmp_path, affine())
    for arguments in (["--streams", "1,2"], ["--streams", "1"]):
        written = tmp_path / "bench.json"
        bench = ["bench", str(model), "-n", "3", "--warm-up", "0", "-o", str(written), *arguments]
        assert console.run(openqaic.tool, bench) == 0
        assert run(written, "-o", tmp_path / "page.html") == 0
    folder = tmp_path / "program"
    assert console.run(openqaic.tool, ["compile", str(model), "-o", str(folder)]) == 0
    assert runner.main(["-t", str(folder), "-n", "3", "--json", str(tmp_path / "run.json")]) == 0
    capsys.readouterr()
    assert run(tmp_path / "run.json") == 0
    assert capsys.readouterr().out.startswith("Latency of 3 inferences\n")


@pytest.mark.parametrize("wrong", ["1", None, True, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("place", ["samples", "rate"])
def test_measurements_that_are_no_numbers_are_refused(tmp_path, capsys, wrong, place):
    content = (
        {**RUN, **measurement([1.0, wrong])}
        if place == "samples"
        else {**RUN, "inferences_per_second": wrong}
    )
    (tmp_path / "run.json").write_text(json.dumps(content))
    assert run(tmp_path / "run.json") == 1
    assert "expected a number of at least 0" in capsys.readouterr().err


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "1", "\x1b[2J", 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


def places(value, path=()):
    """Paths of all parts of a JSON value."""
    yield path
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(part, (*path, key))


@given(data=st.data(), content=st.sampled_from([BENCH, RUN]))
def test_other_values_anywhere_are_drawn_or_refused(data, content):
    changed = copy.deepcopy(content)
    *path, last = data.draw(st.sampled_from(list(places(changed))[1:]))
    part = changed
    for key in path:
        part = part[key]
    part[last] = data.draw(JSON)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as errors:
        file = Path(folder) / "file.json"
        file.write_text(json.dumps(changed))
        code = run(file, "-o", Path(folder) / "page.html")
    assert (code == 0) == (errors.getvalue() == "")
    assert "bug" not in errors.getvalue()
    assert errors.getvalue().rstrip("\n").isprintable()


def test_a_model_is_named_with_the_command_that_draws_it(tmp_path, capsys):
    """Regression: the command showed the first bytes of the file instead."""
    model = save(tmp_path, affine())
    assert run(model) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: {model} is a model or a program; ")
    assert f"`openqaic inspect {model} graph -o graph.html`" in err


@pytest.mark.parametrize("name", ["latency.txt", "trace.json", "metrics.json", "stats.bin", "bench.json"])
@pytest.mark.parametrize("suffix", [".html", ".png"])
def test_pictures(files, capsys, name, suffix):
    if suffix == ".png":
        pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    target = files / f"picture{suffix}"
    assert run(files / name, "-o", target) == 0
    assert capsys.readouterr().out.startswith(f"wrote {target}, ")
    content = target.read_bytes()
    assert content.startswith(b"<!doctype html>" if suffix == ".html" else b"\x89PNG")
    assert b"<b>" not in content or suffix == ".png"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty; expected a latency report (.txt), a trace"),
        (b"\x7fELF....", "has binary data"),
        (b"PK\x03\x04", "has binary data"),
        (b"\x89PNG\r\n\x1a\n", "has binary data"),
        (b"\xff\xfe", "is not UTF-8 text"),
        ("\u00e9t\u00e9 Latin-1".encode("latin-1"), "is not UTF-8 text"),
        ("plain before \u00e9t\u00e9 Latin-1".encode("latin-1"), "is not UTF-8 text"),
        (b"\xef\xbb\xbfhello", "begins with a byte order mark and 'hello'"),
        ("\u00e9".encode() * 40_000 + b"a", "begins with '\u00e9\u00e9"),
        (b"a" + "\u00e9".encode() * 40_000, "begins with 'a\u00e9"),
        ("na\u00efve\n".encode(), "begins with 'na\u00efve\\n'"),
        (b"hello", "begins with 'hello'"),
        (b"{}", "is JSON without latencies or a trace; expected a latency report"),
        (b"[1", "a Chrome trace"),
        (b'{"model": "a", "precisions": []}', "the JSON of openqaic bench, qaic-runner or get_metrics()"),
        (b'{"avg_latency"', "expected the result of openqaic bench, qaic-runner or get_metrics()"),
        (b'{"measurements": [{"latency": {"samples_us": [1]}}]}', "found no 'activations'"),
        (b'{"measurements": 7, "samples_us": 1}', "found other values"),
        (b'{"avg_latency": 1}', "num_of_inferences is None"),
        (b"OQSTATS1", "the buffer is truncated"),
        (LATENCY.encode(), "no latencies"),
        (LATENCY.encode() + b"1, 2\n", "columns"),
    ],
)
def test_foreign_files_are_refused_with_what_was_found(tmp_path, capsys, content, said):
    path = tmp_path / "file"
    path.write_bytes(content)
    for more in ((), ("-o", tmp_path / "x.html")):
        assert run(path, *more) == 1
        errors = capsys.readouterr().err
        assert errors.startswith("error: ")
        assert said in errors
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_other_mistakes(files, capsys, monkeypatch):
    assert run(files / "missing") == 1
    assert "missing: No such file or directory" in capsys.readouterr().err
    assert run(files / "latency.txt", "-o", "x.gif") == 2
    assert "x.gif: a picture ends in .html or .png, not in '.gif'" in capsys.readouterr().err
    assert run(files / "latency.txt", "-o", files / "no" / "x.html") == 1
    assert "No such file or directory" in capsys.readouterr().err
    os.mkfifo(files / "pipe")
    assert run(files / "pipe") == 1
    assert "pipe is not a regular file; expected" in capsys.readouterr().err
    assert run(files) == 1
    assert f"{files} is a folder; expected" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert run(files / "latency.txt", "-o", files / "x.png") == 1
    assert "pip install 'openqaic[plot]'" in capsys.readouterr().err


def test_a_buffer_of_another_program_is_refused(files, capsys):
    from qpc_support import DATA

    container = next((DATA / "qpc").glob("s01_*.qpc"))
    assert run(files / "stats.bin", "--qpc", container, "-o", files / "x.html") == 1
    assert "error: " in capsys.readouterr().err
    assert not (files / "x.html").exists()
