"""``qaic-opstats`` as users see it: complete outputs, file names, and errors about invalid files."""

import json
import shlex
import subprocess
import sys

import pytest

import qaic.stats
import stats_buffers
from qaic import _core
from qaic.cli.opstats import main
from qpc_support import container, program

DESCRIPTOR = stats_buffers.descriptor_json([3], network="QAicGraph")
NAME = "aic-profiling-program-0-activation-0-inf-{}-QAicGraph-aiccyclecounts.bin"
STEM = "aic-profiling-program-0-activation-0-inf-{}-QAicGraph"

SUMMARY = """\
device: CPU
producer: tests

core  ucycles  ucycles(%)     pcycles  pcycles(%)  count      out KB  ucycles/KB  pcycles/KB  stddev(pc/KB)  opdetails
c0          4      22.22%         N/A         N/A      2        0.25       16.00         N/A            N/A  Add CPU HOST (float)
c0          4      22.22%         N/A         N/A      2        0.12       32.00         N/A            N/A  MatMul CPU HOST (float)
c0          4      22.22%         N/A         N/A      2        0.38       10.67         N/A            N/A  Relu CPU HOST (float)

c0 total:              18 ucycles             N/A pcycles (thread max)
c0    t0 CPU                   18 ucycles [1000000, 1000018]             N/A pcycles     N/A utilization


c00t0 batch ucycles:               18 [1000000,1000018]    pcycles:             N/A 
c0: Total inference pcycle is N/A
c0: Effective frequency is N/A
c00t0 activate ucycles:               N/A
total batch ucycles:               18 [1000000, 1000018]
[QAicGraph] Device instance batch/s: (1/9.375e-07): 1.06667e+06
[QAicGraph] Device instance inf/s: (1/9.375e-07): 1.06667e+06
max input wait ucycles:               N/A
max output wait ucycles:              N/A
"""  # noqa: E501, W291 - as the tool writes it

TRACE = """\
{"displayTimeUnit": "ns", "otherData": {"producer": "openqaic"}, "traceEvents": [
{"name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "QAicGraph"}},
{"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "QAicGraph_Device"}},
{"name": "Device_0-Execution", "cat": "aic", "ph": "X", "ts": 0.000, "dur": 0.937, "pid": 1, "tid": 1, "args": {}},
{"name": "thread_name", "ph": "M", "pid": 1, "tid": 2, "args": {"name": "QAicGraph_Core_0"}},
{"name": "Core-0-Execution", "cat": "aic", "ph": "X", "ts": 0.000, "dur": 0.937, "pid": 1, "tid": 2, "args": {}},
{"name": "thread_name", "ph": "M", "pid": 1, "tid": 3, "args": {"name": "QAicGraph_Core_0_CPU"}},
{"name": "MatMul", "cat": "aic", "ph": "X", "ts": 0.000, "dur": 0.104, "pid": 1, "tid": 3, "args": {"opName" : "/layer.0/MatMul/__0", "opKind" : "MatMul", "opMemory" : "HOST", "oc" : "0", "opUCycle" : "2", "opOutputSize" : "64", "UCyclesPerKB" : "32.00", "opShape" : "[1 x 16]"}},
"""  # noqa: E501 - as the tool writes it


def encoded(ops=6, *, descriptor=DESCRIPTOR, run=None, **others):
    sections = {**stats_buffers.even_sections(ops, descriptor_ops=3), "META": b'{"producer": "tests"}'}
    fingerprint = _core.StatsDescriptor.from_json(descriptor).fingerprint
    facts = stats_buffers.run_facts(**others) if run is None else run
    return _core.encode_stats(facts, sections, fingerprint)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a container and a folder that holds one buffer."""
    monkeypatch.chdir(tmp_path)
    extra = [("opstatsdesc.open", DESCRIPTOR)]
    (tmp_path / "programqpc.bin").write_bytes(container(program(name="QAicGraph", extra=extra)))
    (tmp_path / "stats").mkdir()
    (tmp_path / "stats" / NAME.format(0)).write_bytes(encoded())
    (tmp_path / "stats" / "notes.txt").write_text("not a buffer")
    return tmp_path


@pytest.fixture
def run(folder, capsys):
    """Runs the tool on the container and the buffers; returns the exit code, the output and the errors."""

    def runner(*arguments, given=("--qpc", "programqpc.bin", "--input-dir", "stats")):
        try:
            code = main([str(argument) for argument in (*given, *arguments)])
        except SystemExit as error:
            code = error.code
        return code, *capsys.readouterr()

    return runner


def outputs(folder):
    return sorted(path.name for path in folder.iterdir())


def events(path):
    return json.loads(path.read_text())["traceEvents"]


def test_summary_and_trace_of_one_inference(run, folder):
    stem = f"out/{STEM.format(0)}.qaic-opstats"
    printed = (
        f"Generated summary outputs:\n {stem}.summary.txt\nGenerated trace outputs:\n {stem}.trace.json\n"
    )
    assert run("--output-dir", "out", "--summary", "--trace") == (0, printed, "")
    assert (folder / f"{stem}.summary.txt").read_text() == SUMMARY
    assert (folder / f"{stem}.trace.json").read_text().startswith(TRACE)
    assert outputs(folder / "out") == [
        f"{STEM.format(0)}.qaic-opstats.{end}" for end in ("summary.txt", "trace.json")
    ]


def test_short_options_write_here(run, folder):
    code, _, err = run("--summary", given=("-q", "programqpc.bin", "-i", "stats"))
    assert (code, err) == (0, "")
    assert (folder / f"{STEM.format(0)}.qaic-opstats.summary.txt").read_text() == SUMMARY


def test_every_sample_has_its_own_lines(run, folder):
    for inference in (10, 2):
        (folder / "stats" / NAME.format(inference)).write_bytes(encoded(inference=inference))
    # Newer tools write another prefix and no activation.
    (folder / "stats" / "mine-program-1-inf-7-QAicGraph-aiccyclecounts_QAicGraph_.bin").write_bytes(encoded())
    code, out, err = run("--summary")
    assert (code, err) == (0, "")
    names = [*(STEM.format(inference) for inference in (0, 2, 10)), "mine-program-1-inf-7-QAicGraph"]
    assert out == "".join(f"Generated summary outputs:\n {name}.qaic-opstats.summary.txt\n" for name in names)


def test_bad_files_are_named_and_the_others_are_decoded(run, folder):
    good = encoded()
    bad = {
        1: good[:100],
        2: b"\x93" * 4096,
        3: bytes(4096),
        4: encoded(descriptor=stats_buffers.descriptor_json([4])),
        5: b"",
    }
    for inference, content in bad.items():
        (folder / "stats" / NAME.format(inference)).write_bytes(content)
    code, out, err = run("--summary")
    assert code == 1
    assert out == f"Generated summary outputs:\n {STEM.format(0)}.qaic-opstats.summary.txt\n"
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert [line.split(": ")[1] for line in errors] == [
        f"stats/{NAME.format(inference)}" for inference in bad
    ]
    codes = [line.rsplit("[", 1)[1] for line in errors]
    assert codes == [
        "stats.truncated]",
        "stats.unknown_layout]",
        "stats.empty]",
        "stats.other_program]",
        "stats.empty]",
    ]
    assert err.splitlines()[-1].startswith("hint: ")
    assert "force=True" not in err
    assert outputs(folder) == [f"{STEM.format(0)}.qaic-opstats.summary.txt", "programqpc.bin", "stats"]


def test_buffers_of_another_program_are_one_error(run, folder):
    other = encoded(descriptor=stats_buffers.descriptor_json([4]))
    for inference in (3, 4, 5):
        (folder / "stats" / NAME.format(inference)).write_bytes(other)
    code, out, err = run("--summary")
    assert code == 1
    assert f"{STEM.format(0)}.qaic-opstats" in out
    error, hint = err.splitlines()
    first = f"stats/{NAME.format(3)}"
    assert error.startswith(f"error: {first} and 2 other files: the buffer is from another program: ")
    assert error.count(first) == 1
    assert hint.startswith("hint: --qpc expects the container of the buffers")


def test_an_interrupted_run_states_the_errors_so_far(run, folder, monkeypatch):
    (folder / "stats" / NAME.format(3)).write_bytes(b"")
    (folder / "stats" / NAME.format(4)).write_bytes(encoded())
    opened = qaic.stats.open

    def interrupted(path, **options):
        if NAME.format(4) in str(path):
            raise KeyboardInterrupt
        return opened(path, **options)

    monkeypatch.setattr(qaic.stats, "open", interrupted)
    code, _, err = run("--summary")
    assert code == 130
    assert f"error: stats/{NAME.format(3)}: " in err


def test_a_network_called_over_several_lines_is_found(run, folder):
    (folder / "stats" / "p-program-0-activation-0-inf-3-two\nlines-aiccyclecounts.bin").write_bytes(encoded())
    code, out, err = run("--summary")
    assert (code, err) == (0, "")
    assert " p-program-0-activation-0-inf-3-two\\nlines.qaic-opstats.summary.txt\n" in out


def test_force_takes_the_buffer_of_another_program(run, folder):
    (folder / "stats" / NAME.format(0)).write_bytes(encoded(descriptor=stats_buffers.descriptor_json([4])))
    assert run("--summary")[0] == 1
    assert run("--summary", "--force")[0] == 0


def test_no_buffers(run, folder):
    (folder / "stats" / NAME.format(0)).unlink()
    code, out, err = run("--summary")
    assert (code, out) == (1, "")
    assert err == (
        "error: stats: no file is named <prefix>-program-<P>[-activation-<A>]-inf-<I>-<network>"
        "-aiccyclecounts[_<slice>_].bin [stats.no_buffers]\n"
        "hint: such files come from qaic-runner with --aic-profiling-type=raw_device_stats\n"
    )


def test_no_directory(run, folder):
    code, _, err = run("--summary", given=("-q", "programqpc.bin", "-i", "nowhere"))
    assert (code, err) == (1, "error: nowhere: No such file or directory\n")


def test_a_program_without_statistics(run, folder):
    (folder / "programqpc.bin").write_bytes(container(program()))
    code, _, err = run("--summary")
    assert code == 1
    assert err == (
        "error: programqpc.bin: the program was compiled without statistics\n"
        "hint: compile it with -stats-level=70; --force decodes without names\n"
    )
    code, _, err = run("--summary", "--force")
    assert (code, err) == (0, "")
    summary = (folder / f"{STEM.format(0)}.qaic-opstats.summary.txt").read_text()
    assert "  unknown CPU  \n" in summary


def test_one_level_of_output_directory_is_made(run, folder):
    assert run("--summary", "-o", "out")[0] == 0
    code, _, err = run("--summary", "-o", "a/b")
    assert (code, err) == (1, "error: a/b: No such file or directory\n")
    (folder / "file").write_text("")
    code, _, err = run("--summary", "-o", "file")
    assert (code, err) == (1, "error: file: File exists\n")


def test_an_output_that_cannot_be_written(run, folder):
    (folder / f"{STEM.format(0)}.qaic-opstats.summary.txt").mkdir()
    code, _, err = run("--summary")
    assert code == 1
    assert err == f"error: {STEM.format(0)}.qaic-opstats.summary.txt: Is a directory\n"
    assert len(outputs(folder)) == 3, "nothing unfinished is left"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "nothing to do: give --summary, --trace or both"),
        (
            ("--summary", "--select-cores", "one"),
            "argument -c/--select-cores: 'one' is not a list of numbers such as 0,5,1",
        ),
        (
            ("--trace", "--merge-mq-traces", "perhaps"),
            "argument --merge-mq-traces: 'perhaps' is neither true nor false",
        ),
        (("--trace", "--show-barrier-event"), None),
        (("--trace", "--flow-event", "full", "--nope"), "unknown option --nope"),
    ],
)
def test_wrong_usage(run, arguments, error):
    code, _, err = run(*arguments)
    if error is None:
        assert (code, err) == (0, "")
    else:
        assert (code, err.splitlines()[0]) == (2, f"error: {error}")


def test_usage_without_an_output_gives_a_command_that_writes_one(run, folder):
    code, _, err = run()
    command = err.splitlines()[-1].split("`")[1]
    assert (code, shlex.split(command)[-1]) == (2, "--summary")
    assert main(shlex.split(command)[1:]) == 0
    assert outputs(folder)


def test_usage_without_an_output_checks_the_inputs_first(run, folder):
    code, _, err = run("--input", str(folder.parent))
    assert code == 1
    assert "no file is named" in err


def test_options_of_the_trace(run, folder):
    code, _, err = run(
        "--trace", "--flow-events", "full", "--show-barrier-events", "--merge-thread-groups", "false",
        "--merge-mq-traces", "true", "-c", "0",
    )  # fmt: skip
    assert (code, err) == (0, "")
    shown = events(folder / f"{STEM.format(0)}.qaic-opstats.trace.json")
    assert sum(event["ph"] == "s" for event in shown) == 4
    names = [event["args"]["name"] for event in shown if event["name"] == "thread_name"]
    assert names == ["QAicGraph_Device", "QAicGraph_Core_0", "QAicGraph_Core_0_CPU_0"]


def test_perfetto(run, folder):
    code, out, _ = run("--trace", "--format", "perfetto")
    path = folder / f"{STEM.format(0)}.qaic-opstats.trace.pftrace"
    assert (code, out) == (0, f"Generated trace outputs:\n {path.name}\n")
    assert path.read_bytes()[:1] == b"\x0a"
    assert b"/layer.2/MatMul/__2" in path.read_bytes()


def test_a_core_that_is_not_there(run, folder):
    code, _, err = run("--summary", "--select-cores", "0,3")
    assert (code, err) == (0, f"warning: stats/{NAME.format(0)}: there is no core 3\n")


def test_cores_that_no_buffer_has_are_named_once_a_run(run, folder):
    for inference in (1, 2):
        (folder / "stats" / NAME.format(inference)).write_bytes(encoded())
    code, out, err = run("--summary", "--select-cores", "0,1,2")
    assert (code, err) == (0, f"warning: stats/{NAME.format(0)}: there are no cores 1, 2\n")
    assert out.count(".summary.txt") == 3


SLICED = "aic-profiling-program-0-inf-{}-QAicGraph_slice{:02}-aiccyclecounts_QAicGraph_slice{:02}_.bin"


@pytest.fixture
def sliced(folder):
    """Two inferences of a program on two devices; in the second one, the second device wrote nothing."""
    (folder / "stats" / NAME.format(0)).unlink()
    for inference, number in ((1, 0), (1, 1), (2, 0)):
        (folder / "stats" / SLICED.format(inference, number, number)).write_bytes(encoded())
    return folder


def test_devices_are_merged(run, sliced):
    code, out, err = run("--trace", "--summary", "-o", "out")
    assert code == 0
    warned = "stats/" + SLICED.format(2, 0, 0)
    assert err == f"warning: {warned}: device 1 wrote no buffer for this inference\n"
    stem = "aic-profiling-program-0-inf-{}-QAicGraph_slice{}.qaic-opstats"
    assert out.splitlines() == [
        "Generated summary outputs:",
        f" out/{stem.format(1, '00')}.summary.txt",
        f" out/{stem.format(1, '01')}.summary.txt",
        "Generated trace outputs:",
        " out/aic-profiling-program-0-inf-1-QAicGraph_slice00-merged.qaic-opstats.trace.json",
        "Generated summary outputs:",
        f" out/{stem.format(2, '00')}.summary.txt",
        "Generated trace outputs:",
        f" out/{stem.format(2, '00')}.trace.json",
    ]
    (merged,) = (sliced / "out").glob("*inf-1-*merged*.trace.json")
    names = {event["args"]["name"] for event in events(merged) if event["name"] == "thread_name"}
    assert {f"QAicGraph_slice0{number}_Core_0_CPU" for number in (0, 1)} <= names


def test_devices_apart_and_chosen(run, sliced):
    _, out, _ = run("--trace", "--merge-mq-traces", "false")
    assert len([line for line in out.splitlines() if "merged" not in line and line.startswith(" ")]) == 3
    code, out, err = run("--trace", "--select-devices", "1")
    assert code == 0
    name = "aic-profiling-program-0-inf-1-QAicGraph_slice01.qaic-opstats.trace.json"
    assert out == f"Generated trace outputs:\n {name}\n"
    code, _, err = run("--trace", "-d", "4")
    assert (code, err) == (1, "error: stats: no buffer of device 4, only of devices 0, 1\n")


def test_a_host_trace(run, folder):
    host = [{"ph": "X", "name": "work", "pid": 7, "tid": 8, "ts": 5, "dur": 2}]
    (folder / "host.json").write_text(json.dumps(host))
    assert run("--trace", "--host-trace", "host.json")[0] == 0
    shown = events(folder / f"{STEM.format(0)}.qaic-opstats.trace.json")
    assert {"name": "work", "ph": "X", "ts": 0.0, "pid": 7, "tid": 8, "dur": 2} in shown
    (folder / "host.json").write_text("{}")
    code, _, err = run("--trace", "--host-trace", "host.json")
    assert code == 1
    assert err.startswith("error: host.json: a host trace is a Chrome trace")
    assert "[stats.host_trace]" in err
    code, _, err = run("--trace", "--host-trace", "no.json")
    assert (code, err) == (1, "error: no.json: No such file or directory\n")


def test_levels_without_operations_are_noted_once(run, folder):
    sections = stats_buffers.even_sections(0)
    del sections["OP"]
    fingerprint = _core.StatsDescriptor.from_json(DESCRIPTOR).fingerprint
    buffer = _core.encode_stats(stats_buffers.run_facts() | {"stats_level": 40}, sections, fingerprint)
    for inference in (0, 1):
        (folder / "stats" / NAME.format(inference)).write_bytes(buffer)
    code, _, err = run("--summary", "--trace")
    assert code == 0
    assert err == f"note: stats/{NAME.format(0)}: level 40 contains no operations; they need level 70\n"
    assert "opdetails" not in (folder / f"{STEM.format(0)}.qaic-opstats.summary.txt").read_text()


def test_verbose(run, folder):
    code, out, _ = run("--summary", "--verbose")
    assert code == 0
    assert (
        out.splitlines()[0] == f"stats/{NAME.format(0)}: layout oqstats, CPU, level 70, 1 core, 6 operations"
    )


def test_help_of_the_module(folder):
    command = [sys.executable, "-m", "qaic.cli.opstats", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for option in (
        "--qpc", "--input-dir", "--output-dir", "--summary", "--trace", "--host-trace", "--select-cores",
        "--select-devices", "--merge-mq-traces", "--merge-thread-groups", "--flow-events",
        "--show-barrier-events", "--format", "--layout", "--force", "--opstats-schema", "--verbose", "report",
    ):  # fmt: skip
        assert option in done.stdout
