"""``qaic-runner`` records inferences: types, windows, files, metrics."""

import errno
import json
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qaic
from child_process import started
from qaic import stats
from qaic.cli import compile_and_run
from qaic.cli.runner import command_line, outputs
from qaic.options.rows.runner import COUNTED, STREAMED
from qaic.support.program_names import SAMPLING_RATES
from runner_support import compiled, doubling
from session_models import save

COLUMNS = (
    "Sample, devInfPerSec, devExecUs, devInWaitTimeUs, devOutWaitTimeUs, hostRoundTripUs, enqTimeUs, "
    "preProcTimeUs, submitTimeUs, execTotalUs, exectoVcUs, execToCompleteUs, postProcUs, "
    "totalRoundtripTimeUs, queueDepth, numInfInQueue"
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A container that was compiled with the default level, not with an explicit one."""
    return compiled(tmp_path_factory.mktemp("plain"), doubling())


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A container with times of operators."""
    return compiled(tmp_path_factory.mktemp("measured"), doubling(), stats_level=70)


@pytest.fixture(scope="module")
def silent(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("silent"), doubling(), stats_level=0)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def latency_table(path):
    """Lines before the table, and its rows by column; values that were not measured are NaN."""
    lines = path.read_text().splitlines()
    assert lines[4] == COLUMNS
    cells = [[np.nan if cell == "N/A" else float(cell) for cell in line.split(", ")] for line in lines[5:]]
    return lines[:4], dict(zip(COLUMNS.split(", "), np.array(cells).T, strict=True))


def metrics(lines):
    """Rows of the aggregated metrics of the device."""
    start = lines.index("--- Aggregated Device Metrics Report ---")
    rows = [re.split(r",\s*", line.strip()) for line in lines[start + 2 :]]
    return {row[0]: [float(cell) for cell in row[1:]] for row in rows}


def test_the_documented_workflow(tool, tmp_path):
    save(tmp_path, doubling())
    command = [sys.executable, "-m", "qaic.cli.compile", "-model=model.onnx", "-aic-binary-dir=./binaries"]
    subprocess.run([*command, "-stats-level=70"], check=True, capture_output=True)
    code, lines, err = tool(
        *[
            "--test-data=./binaries",
            "--aic-profiling-type=raw_device_stats",
            "--aic-profiling-out-dir=./stats",
        ],
        *["--aic-profiling-num-samples=5", "--num-iter=100"],
    )
    assert (code, err) == (0, "")
    folder = tmp_path / "stats"
    network = qaic.Qpc("binaries").program_info.name
    expected = [
        f"aic-profiling-program-0-activation-0-inf-{number}-{network}-aiccyclecounts.bin"
        for number in range(5)
    ]
    assert names(folder) == expected
    assert sorted(line for line in lines if "file" in line) == [
        f"Writing file:stats/{name}" for name in expected
    ]
    for number, name in enumerate(expected):
        buffer = stats.open(folder / name, qpc="binaries/programqpc.bin")
        buffer.check()
        assert buffer.run.inference == number
        assert buffer.run.activation == 0
        assert buffer.run.complete
        assert len(buffer.ops)


def test_the_device_s_metrics_of_any_program_with_statistics(tool, plain):
    code, lines, err = tool("-t", plain, "-n", "30")
    assert (code, err) == (0, "")
    place = lines.index(" ---- Stats ----")
    assert lines[place + 1].startswith("InferenceCnt 30 ")
    assert lines[place + 2 : place + 4] == [
        "Device Performance: ",
        "--- Cumulative Device Metrics Report ---",
    ]
    assert lines[place + 4] == "Metric,                 Value,         Unit           "
    assert lines[place + 5] == "ProfilingSamples_Func_0,20,            Samples        "
    average, least, most, deviation = metrics(lines)["ExecTimeUs_Func_0"]
    assert 0 <= least <= average <= most
    assert deviation >= 0
    # A metric that a CPU does not measure has no row; a zero would be wrong.
    assert not any("Pct" in line or "DDR" in line for line in lines)
    last = next(line for line in reversed(lines) if "Inf/Sec" in line)
    assert last == lines[place + 1]


def test_each_activation_gives_samples_of_metrics(tool, plain):
    _, lines, _ = tool("-t", plain, "-n", "100", "-a", "2", "-S", "1")
    form = re.compile(r"ProfilingSamples_Func_0,(\d+),            Samples        ")
    (count,) = (int(found[1]) for line in lines if (found := form.fullmatch(line)))
    # At most 20 inferences of an activation are recorded. Their number depends on which activation is free
    # first.
    assert 20 < count <= 40


def test_a_program_without_statistics_has_no_metrics_and_no_buffers(tool, silent, tmp_path):
    code, lines, _ = tool("-t", silent, "-n", "3")
    assert code == 0
    assert lines[-2] == " ---- Stats ----"
    for kind in ("stats", "raw_device_stats"):
        code, lines, err = tool("-t", silent, "--aic-profiling-type", kind, "--aic-profiling-out-dir", "out")
        assert code == 1
        assert err.startswith(
            f"error: --aic-profiling-type {kind}: the program has no device statistics "
            "[runner.no_statistics]\nhint: "
        )
        assert not lines[1:]
    assert not list(tmp_path.iterdir())
    code, _, err = tool("-t", silent, "--aic-profiling-type", "latency", "-n", "3")
    assert (code, err) == (0, "")
    _, table = latency_table(tmp_path / "aic-profiling-program-0-latency.txt")
    assert np.isnan(table["devExecUs"]).all()


def test_inferences_are_those_of_the_window(tool, measured, tmp_path):
    code, _, _ = tool(
        *["-t", measured, "-n", "20", "--aic-profiling-type", "raw_device_stats", "-S", "3"],
        *["--aic-profiling-start-iter", "4", "--aic-profiling-num-samples", "3"],
    )
    assert code == 0
    assert [re.search(r"inf-(\d+)", name)[1] for name in names(tmp_path)] == ["4", "5", "6"]


def test_more_samples_than_inferences_are_no_mistake(tool, measured, tmp_path):
    code, _, err = tool(
        *["-t", measured, "-n", "3", "--aic-profiling-type", "raw_device_stats"],
        *["--aic-profiling-num-samples", "1000"],
    )
    assert (code, err) == (0, "")
    assert len(names(tmp_path)) == 3


def test_every_activation_has_its_samples(tool, measured, tmp_path):
    # The system can delay one of the threads for a whole run, so the test repeats runs until both threads
    # have run.
    for attempt in range(50):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        code, _, _ = tool(
            *["-t", measured, "-n", "5000", "-a", "2", "-S", "1", "--aic-profiling-type", "raw_device_stats"],
            *["--aic-profiling-num-samples", "3", "--aic-profiling-out-dir", str(folder)],
        )
        assert code == 0
        found = [re.search(r"activation-(\d+)-inf-(\d+)", name).groups() for name in names(folder)]
        # All activations share one counter.
        assert len({inference for _, inference in found}) == len(found)
        counts = Counter(activation for activation, _ in found)
        assert set(counts) <= {"0", "1"}
        assert max(counts.values()) == 3
        if min(counts["0"], counts["1"]) == 3:
            return
    pytest.fail("an activation never had its samples")


def test_latencies(tool, plain, tmp_path):
    code, lines, err = tool(
        *["-t", plain, "-n", "40", "-S", "2", "-aic-profiling-type", "latency"],
        *["--aic-profiling-num-samples", "25", "--aic-profiling-start-iter", "10"],
    )
    assert (code, err) == (0, "")
    path = tmp_path / "aic-profiling-program-0-latency.txt"
    assert names(tmp_path) == [path.name]
    assert "Writing file:aic-profiling-program-0-latency.txt" in lines
    head, table = latency_table(path)
    assert qaic.Qpc(plain).program_info.name in head[1]
    assert "Set size 2" in head[2]
    assert head[3] == ""
    assert sorted(table["Sample"]) == list(range(10, 35))
    parts = sum(table[name] for name in ("enqTimeUs", "preProcTimeUs", "execTotalUs", "postProcUs"))
    assert (parts <= table["totalRoundtripTimeUs"] + 1e-6).all()
    # The program was compiled without an explicit level, so the share of the device is not recorded.
    assert np.isnan(table["devExecUs"]).all()
    # The numbers of the kernel exist only with a kernel.
    for name in ("hostRoundTripUs", "submitTimeUs", "exectoVcUs", "execToCompleteUs"):
        assert np.isnan(table[name]).all()
    assert (table["numInfInQueue"] >= 1).all()


def test_latencies_have_the_device_s_share_where_statistics_were_asked_for(tool, measured, tmp_path):
    path = tmp_path / "aic-profiling-program-0-latency.txt"
    command = [
        "-t",
        measured,
        "-n",
        "9",
        "--aic-profiling-type",
        "latency",
        "--aic-profiling-num-samples",
        "9",
    ]
    assert tool(*command)[0] == 0
    _, table = latency_table(path)
    assert (table["devExecUs"] > 0).all()
    assert (table["devExecUs"] <= table["execTotalUs"] + 0.1).all()
    np.testing.assert_allclose(table["devInfPerSec"], 1e6 / table["devExecUs"], rtol=1e-2)


def test_the_trace_of_the_host(tool, plain, tmp_path):
    code, _, _ = tool("-t", plain, "-n", "12", "--aic-profiling-type=trace", "--aic-profiling-num-samples=7")
    assert code == 0
    (name,) = names(tmp_path)
    assert name == "aic-profiling-program-0-trace.json"
    events = json.loads((tmp_path / name).read_text())["traceEvents"]
    processes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert processes == {"HOST_PROC"}
    totals = [event for event in events if event["name"] == "total"]
    assert sorted(int(event["args"]["sample"]) for event in totals) == list(range(7))


def test_statistics_as_text_are_those_of_the_buffer(tool, measured, tmp_path):
    code, _, _ = tool(
        *[
            "-t",
            measured,
            "-n",
            "9",
            "--aic-profiling-type",
            "stats",
            "--aic-profiling-type",
            "raw_device_stats",
        ],
        *["--aic-profiling-num-samples", "2"],
    )
    assert code == 0
    texts = sorted(tmp_path.glob("*.txt"))
    assert [path.name for path in texts] == [
        f"aic-profiling-program-0-activation-0-inf-{number}.txt" for number in range(2)
    ]
    for text, raw in zip(texts, sorted(tmp_path.glob("*.bin")), strict=True):
        assert text.read_text() == stats.open(raw, qpc=measured / "programqpc.bin").summary()


@pytest.mark.parametrize("rate", SAMPLING_RATES)
def test_a_stream_takes_a_part_of_the_inferences(tool, plain, tmp_path, rate):
    code, lines, err = tool(
        *["-t", plain, "-n", "32", "-S", "1", "--aic-profiling-type", "latency_stream"],
        *["--aic-profiling-sampling-rate", rate, "--aic-profiling-duration", "600000"],
    )
    assert (code, err) == (0, "")
    _, table = latency_table(tmp_path / "aic-profiling-program-0-latency.txt")
    assert table["Sample"].tolist() == list(range(0, 32, SAMPLING_RATES[rate]))
    reported = [re.fullmatch(r"latency_stream: RoundTripTimeUs .* Count (\d+)", line) for line in lines]
    assert sum(int(match[1]) for match in reported if match) == len(table["Sample"])


def test_a_stream_ends_after_its_duration(tool, plain, tmp_path):
    code, lines, _ = tool(
        *["-t", plain, "--time", "1", "--aic-profiling-type", "trace_stream"],
        *["--aic-profiling-duration", "100", "--aic-profiling-reporting-rate", "500"],
    )
    assert code == 0
    events = json.loads((tmp_path / "aic-profiling-program-0-trace.json").read_text())["traceEvents"]
    totals = [event for event in events if event["name"] == "total"]
    ran = int(re.search(r"InferenceCnt (\d+) ", "\n".join(lines))[1])
    assert 0 < len(totals) < ran
    assert sum(line.startswith("trace_stream: ") for line in lines) >= 1


def test_a_delay_lets_inferences_pass(tool, plain, tmp_path):
    delayed = ["--aic-profiling-type", "latency", "--aic-profiling-start-delay"]
    code, _, err = tool("-t", plain, "-n", "3", *delayed, "600000")
    assert code == 0
    assert err == "warning: the run ended before --aic-profiling-start-delay; nothing was recorded\n"
    assert not names(tmp_path)
    code, _, err = tool("-t", plain, "--time", "1", *delayed, "100")
    assert (code, err) == (0, "")
    _, table = latency_table(tmp_path / "aic-profiling-program-0-latency.txt")
    assert table["Sample"].min() > 0


def test_previous_files_are_replaced_and_that_is_said(tool, plain, tmp_path):
    command = ["-t", plain, "-n", "2", "--aic-profiling-type", "latency"]
    first = tool(*command)[1]
    second = tool(*command)[1]
    path = "aic-profiling-program-0-latency.txt"
    assert f"Deleting previous file: {path}" not in first
    place = second.index(f"Deleting previous file: {path}")
    assert second[place + 1] == f"Writing file:{path}"
    assert names(tmp_path) == [path]


def test_statistics_are_an_output_that_is_written_where_outputs_are(tool, measured, tmp_path):
    code, _, err = tool(
        *["-t", measured, "-n", "6", "-S", "2", "--write-output-dir", "out"],
        *["--write-output-start-iter", "2", "--write-output-num-samples", "2"],
    )
    assert (code, err) == (0, "")
    found = names(tmp_path / "out")
    assert found == [
        f"{name}-activation-0-inf-{number}.bin" for name in ("aiccyclecounts", "y") for number in (2, 3)
    ]
    begun = set()
    for number in (2, 3):
        path = tmp_path / "out" / f"aiccyclecounts-activation-0-inf-{number}.bin"
        buffer = stats.open(path, qpc=measured / "programqpc.bin")
        buffer.check()
        begun.add(buffer.run.inference)
    # Inferences are numbered in the order of their start; of two in flight, the later one can be first.
    assert len(begun) == 2
    assert begun <= set(range(6))


def test_live_statistics(tool, plain):
    code, lines, _ = tool("-t", plain, "--time", "1.2", "-s")
    assert code == 0
    live = [
        re.match(r"Live: RoundTripTimeUs Avg ([\d.]+) Min ([\d.]+) Max ([\d.]+) Count (\d+)$", x)
        for x in lines
    ]
    found = next(match for match in live if match)
    average, least, most = (float(found[group]) for group in (1, 2, 3))
    assert 0 < least <= average <= most
    assert int(found[4]) > 1


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--aic-profiling-type", "everything"], 2, "latency_stream, found 'everything'"),
        (["-aic-profiling-format", "kpi"], 2, "latency_stream, found 'kpi'"),
        (["--aic-profiling-type", "latency", "--aic-profiling-num-samples", "0"], 2, "at least 1"),
        (["--aic-profiling-type", "latency", "--aic-profiling-start-iter", "-1"], 2, "at least 0"),
        (["--aic-profiling-type", "latency", "--aic-profiling-sampling-rate", "third"], 2, "'third'"),
        (
            ["--aic-profiling-type", "latency", "--aic-profiling-reporting-rate", "100"],
            2,
            "expected one of 500, 1000, 2000, 4000, found '100'",
        ),
        (
            ["--aic-profiling-type", "trace", "--aic-profiling-type", "trace_stream"],
            2,
            "trace and trace_stream write the same file",
        ),
        (
            ["--aic-profiling-type", "latency", "--aic-profiling-out-dir", "no/where"],
            1,
            "no/where: No such file",
        ),
        (["--aic-profiling-type", "latency", "--aic-profiling-out-dir", "file"], 1, "file: Not a directory"),
    ],
)
def test_bad_values_get_one_clear_message(tool, plain, tmp_path, options, code, message):
    (tmp_path / "file").write_text("")
    found, lines, err = tool("-t", plain, *options)
    assert found == code
    assert message in err
    assert " ---- Stats ----" not in lines
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("options", "unused", "why"),
    [
        (["--aic-profiling-num-samples", "5"], "--aic-profiling-num-samples", ""),
        (
            ["--aic-profiling-type", "latency", "--aic-profiling-duration", "5"],
            "--aic-profiling-duration",
            " of this kind",
        ),
        (
            ["--aic-profiling-type", "latency_stream", "--aic-profiling-start-iter", "5"],
            "--aic-profiling-start-iter",
            " of this kind",
        ),
    ],
)
def test_options_without_effect_warn(tool, plain, options, unused, why):
    code, _, err = tool("-t", plain, "-n", "1", *options)
    assert code == 0
    assert err == f"warning: {unused}: no effect without --aic-profiling-type{why}\n"


@pytest.mark.parametrize(
    ("first", "flags", "count"), [(5, ["-n", "5"], 5), (45, [], 46), (40, ["-n", "41"], 41)]
)
def test_profiles_after_the_last_inference_record_nothing_and_say_so(
    tool, plain, tmp_path, first, flags, count
):
    asked = ["--aic-profiling-type", "latency", "--aic-profiling-start-iter", str(first)]
    code, lines, err = tool("-t", plain, *flags, *asked, "--aic-profiling-out-dir", tmp_path / "out")
    assert code == 0
    assert any(f"InferenceCnt {count} " in line for line in lines)
    is_late = first >= count
    assert err == (
        f"warning: --aic-profiling-start-iter {first} is after the last of {count} inferences, "
        "which are numbered from 0; nothing was recorded\n"
        if is_late
        else ""
    )
    assert len(list((tmp_path / "out").iterdir())) == (0 if is_late else 1)


def test_a_file_that_cannot_be_written_ends_the_run(tool, measured, monkeypatch, tmp_path):
    def full(path, write):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("qaic.cli.runner.profiling.replace_content", full)
    code, _, err = tool("-t", measured, "--time", "600", "--aic-profiling-type", "raw_device_stats")
    assert code == 1
    assert "No space left on device" in err
    assert not names(tmp_path)


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "report.txt"
    path.write_text("before")

    def half(unfinished):
        unfinished.write_text("aft")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        outputs.replace(path, half)
    assert names(tmp_path) == ["report.txt"]
    assert path.read_text() == "before"


def test_ctrl_c_leaves_whole_files_and_no_others(measured, tmp_path):
    command = [
        *(sys.executable, "-u", "-m", "qaic.cli.runner", "-t", str(measured), "--time", "1000"),
        *("--aic-profiling-type", "raw_device_stats", "--aic-profiling-type", "latency"),
        *("--aic-profiling-num-samples", "100000", "--aic-profiling-out-dir", str(tmp_path / "out")),
    ]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        seen = 0
        for line in process.stdout:
            seen += line.startswith("Writing file:")
            if seen == 3:
                break
        process.send_signal(2)
        _, err = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in err
    written = list((tmp_path / "out").iterdir())
    assert written
    for path in written:
        assert path.suffix == ".bin"
        stats.open(path, qpc=measured / "programqpc.bin").check()


def test_exec_records_from_the_second_inference_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(tmp_path, doubling())
    argv = [
        "-m=model.onnx",
        "-aic-binary-dir=qpc",
        "-stats-level=70",
        "-num-iter=4",
        "-aic-profiling-out-dir=out",
    ]
    kinds = ["-aic-profiling-type=latency", "-aic-profiling-type=raw_device_stats"]
    assert compile_and_run.main([*argv, *kinds]) == 0, capsys.readouterr().err
    table, raw = sorted(names(tmp_path / "out"), key=lambda name: name.endswith(".bin"))
    assert table == "aic-profiling-program-0-latency.txt"
    assert "-activation-0-inf-1-" in raw
    argv += ["-aic-profiling-start-iter=2", "-aic-profiling-num-samples=5", "-aic-profiling-format=latency"]
    assert compile_and_run.main(argv) == 0
    # Rows are in the order in which inferences ended.
    assert sorted(latency_table(tmp_path / "out" / table)[1]["Sample"]) == [2, 3]


def parsed(argv):
    return command_line.read(command_line.parser(), argv)


DETAILS = st.fixed_dictionaries(
    {},
    optional={
        "start-iter": st.integers(0, 9),
        "num-samples": st.integers(1, 9),
        "start-delay": st.integers(0, 9),
        "out-dir": st.just("x"),
        "duration": st.integers(1, 9),
        "sampling-rate": st.sampled_from(list(SAMPLING_RATES)),
        "reporting-rate": st.sampled_from([500, 4000]),
    },
)


@given(st.lists(st.sampled_from([*COUNTED, *STREAMED]), max_size=4), DETAILS)
def test_every_option_is_used_or_said_to_be_unused(kinds, details):
    argv = [f"--aic-profiling-type={kind}" for kind in kinds]
    argv += [f"--aic-profiling-{name}={value}" for name, value in details.items()]
    options = parsed(argv)
    wanted = command_line.profiling_of(options)
    unused = {name.removeprefix("--aic-profiling-") for name in command_line.without_effect(options)}
    if not kinds:
        assert wanted is None
        assert unused == details.keys()
        return
    assert set(wanted.types) == set(kinds)
    for name in details.keys() - unused:
        found = {
            "start-iter": wanted.first,
            "num-samples": wanted.samples,
            "start-delay": round(wanted.delay_s * 1e3),
            "out-dir": str(wanted.folder),
            "duration": wanted.duration_s and round(wanted.duration_s * 1e3),
            "sampling-rate": {every: word for word, every in SAMPLING_RATES.items()}[wanted.sampling],
            "reporting-rate": round(wanted.period_s * 1e3),
        }[name]
        assert found == details[name]
    of_streams, of_counts = {"duration", "sampling-rate", "reporting-rate"}, {"start-iter", "num-samples"}
    expected = (of_streams if not set(kinds) & set(STREAMED) else set()) | (
        of_counts if not set(kinds) & set(COUNTED) else set()
    )
    assert unused == expected & details.keys()
