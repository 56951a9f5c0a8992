"""``qaic-runner`` runs programs: counts, durations, devices, files, comparisons."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import emulated_cards
import qaicrt
import session_models
from child_process import started
from qaic.cli.runner import command_line
from qaic.compiler.driver import compile_model
from qaic.options import resolve
from runner_support import compiled, doubling, raw, run, two_inputs

STATS = r"InferenceCnt (\d+) TotalDuration (\d+)us BatchSize (\d+) Inf/Sec (\d+\.\d{3})"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("doubling"), doubling())


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("pair"), two_inputs())


def stats(lines):
    place = lines.index(" ---- Stats ----")
    count, microseconds, batch, rate = re.fullmatch(STATS, lines[place + 1]).groups()
    # The following lines describe the device.
    assert lines[place + 2 : place + 3] in ([], ["Device Performance: "])
    return int(count), int(microseconds), int(batch), float(rate)


def test_random_inputs_and_the_final_lines(tool, program):
    code, lines, err = tool("-t", program)
    assert (code, err) == (0, "")
    assert lines[0] == "Using bounded random inputs"
    count, microseconds, batch, rate = stats(lines)
    assert (count, batch) == (40, 1)
    assert rate == pytest.approx(count * 1e6 / microseconds, abs=1e-3)


def test_a_container_file_is_as_good_as_its_folder(tool, program):
    assert tool("-t", program / "programqpc.bin", "-n", "3")[0] == 0


def test_the_rate_counts_the_batch(tool, tmp_path):
    folder = compiled(tmp_path / "batch", doubling((8, 4)))
    code, lines, _ = tool("-t", folder, "-n", "20")
    assert code == 0
    count, microseconds, batch, rate = stats(lines)
    assert (count, batch) == (20, 8)
    assert rate == pytest.approx(count * 1e6 / microseconds * 8, abs=1e-3)


@pytest.mark.parametrize(
    "form",
    [
        [
            "--num-iter",
            "7",
            "--set-size",
            "2",
            "--aic-num-of-activations",
            "2",
            "--aic-threads-per-queue",
            "1",
        ],
        ["-num-iter", "7", "-set-size", "2", "-aic-num-of-activations", "2", "-aic-threads-per-queue", "1"],
        ["-num-iter=7", "--set-size=2", "-a2", "-T", "1", "-aic-lib-path", "anything"],
        ["-n7", "-S2", "-a", "2", "-d", "0", "-submit-timeout", "60000", "-submit-retry-count", "2"],
        ["-n", "7", "--dev", "0", "--unbound-random", "-p", "on"],
        ["-n", "7", "--dev-list", "0", "--aic-batch-max-memory", "1"],
    ],
)
def test_spellings(tool, program, form):
    code, lines, _ = tool("-test-data", program, *form)
    assert code == 0
    assert stats(lines)[0] == 7


def test_duration(tool, program):
    code, lines, _ = tool("-t", program, "--time", "0.2", "-S", "4")
    assert code == 0
    count, microseconds, _, _ = stats(lines)
    assert count >= 1
    assert microseconds >= 200_000


def test_verbose_says_where_and_that_it_worked(tool, program):
    _, quiet, _ = tool("-t", program, "-n", "2")
    code, lines, _ = tool("-t", program, "-n", "2", "-v")
    assert code == 0
    assert "Device: 0" in lines
    assert f"Program: {program}" in lines
    assert lines[-1] == "2 inferences completed successfully"
    assert len(lines) > len(quiet)


def test_given_inputs_and_written_outputs(tool, pair, tmp_path):
    a, b = np.arange(6, dtype=np.float32), np.ones(6, np.float32)
    code, lines, err = tool(
        *["-t", pair, "-i", raw(tmp_path, "a.raw", a), "-i", raw(tmp_path, "b.raw", b), "-n", "4"],
        *["--write-output-dir", "out"],
    )
    assert (code, err) == (0, "")
    assert lines[:2] == [f"Input file: {tmp_path / 'a.raw'}", f"Input file: {tmp_path / 'b.raw'}"]
    names = ["difference_out-activation-0-inf-0.bin", "sum-activation-0-inf-0.bin"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    assert [line for line in lines if line.startswith("Writing")] == [
        f"Writing file:out/{name}" for name in reversed(names)
    ]
    assert np.fromfile(tmp_path / "out" / names[1], np.float32).tolist() == (a + b).tolist()
    assert np.fromfile(tmp_path / "out" / names[0], np.float32).tolist() == (a - b).tolist()


def test_a_range_of_inferences_is_written(tool, program, tmp_path):
    options = ["--write-output-start-iter", "2", "--write-output-num-samples", "3", "-n", "8", "-a", "2"]
    assert tool("-t", program, *options)[0] == 0
    written = sorted(tmp_path.glob("y-*.bin"))
    assert [path.name[-5] for path in sorted(written, key=lambda path: path.name[-5])] == ["2", "3", "4"]
    assert all(re.fullmatch(r"y-activation-[01]-inf-\d\.bin", path.name) for path in written)
    assert len({path.read_bytes() for path in written}) == 1


def test_previous_files_are_replaced_and_that_is_said(tool, program, tmp_path):
    options = ["-t", program, "-n", "1", "-write-output-dir", "."]
    assert tool(*options)[0] == 0
    path = tmp_path / "y-activation-0-inf-0.bin"
    path.write_bytes(b"old")
    code, lines, _ = tool(*options)
    assert code == 0
    assert lines[1:3] == [f"Deleting previous file: {path.name}", f"Writing file:{path.name}"]
    assert path.stat().st_size == 32
    assert list(tmp_path.iterdir()) == [path]


def test_outputs_that_find_no_room_are_an_error(tool, program, tmp_path):
    path = tmp_path / "y-activation-0-inf-0.bin"
    path.symlink_to("/dev/full")
    code, _, complaints = tool("-t", program, "-n", "1", "-write-output-dir", ".")
    assert code == 1
    assert f"error: {path.name}: No space left on device" in complaints


def test_inputs_can_be_written_too(tool, program, tmp_path):
    x = np.arange(8, dtype=np.float32)
    source = raw(tmp_path, "x.raw", x)
    code, _, _ = tool(
        "-t", program, "-i", source, "-n", "2", "--dump-input-buffers", "--write-output-dir", "d"
    )
    assert code == 0
    assert np.fromfile(tmp_path / "d" / "x-activation-0-inf-0.bin", np.float32).tolist() == x.tolist()
    assert np.fromfile(tmp_path / "d" / "y-activation-0-inf-0.bin", np.float32).tolist() == (x + x).tolist()
    code, _, _ = tool("-t", program, "-n", "1", "--dump-input-buffers")
    assert code == 0
    assert (tmp_path / "x-activation-0-inf-0.bin").exists()
    assert not (tmp_path / "y-activation-0-inf-0.bin").exists()


def test_outputs_as_expected(tool, pair, tmp_path):
    a, b = np.arange(6, dtype=np.float32), np.ones(6, np.float32)
    files = ["-i", raw(tmp_path, "a", a), "-i", raw(tmp_path, "b", b), "-o", raw(tmp_path, "s", a + b)]
    good = [*files, "-o", raw(tmp_path, "d", a - b)]
    code, lines, err = tool("-t", pair, *good, "-n", "30", "-v")
    assert (code, err) == (0, "")
    assert "Outputs as expected: 30 inferences" in lines


def test_outputs_that_differ_are_reported_at_the_end(tool, pair, tmp_path):
    a, b = np.arange(6, dtype=np.float32), np.ones(6, np.float32)
    wrong = a - b
    wrong[2] += 1
    files = ["-i", raw(tmp_path, "a", a), "-i", raw(tmp_path, "b", b), "-o", raw(tmp_path, "s", a + b)]
    code, lines, err = tool("-t", pair, *files, "-o", raw(tmp_path, "d", wrong), "-n", "3", "-S", "1")
    assert code == 1
    assert stats(lines)[0] == 3
    assert "error: output 'difference/out' differs in 3 of 3 inferences; " in err
    assert f"inference 0: output 'difference/out' differs from {tmp_path / 'd'}: 1 of 6 elements" in err
    assert "the largest error is 1, at 2: found 1.0, expected 2.0" in err
    assert "hint: --rtol X and --atol X allow" in err


def test_the_last_of_two_values_of_an_option_applies_with_a_warning(tool, program):
    code, lines, err = tool("-t", program, "-n", "5", "--num-iter", "2")
    assert code == 0
    assert stats(lines)[0] == 2
    assert err == "warning: --num-iter has two values: 2 replaces 5\n"
    assert tool("-t", program, "-n", "2", "-n", "2")[2] == ""


def test_equal_numbers_with_other_bits_differ_without_a_tolerance(tool, pair, tmp_path):
    zeros = np.zeros(6, np.float32)
    files = [
        "-i",
        raw(tmp_path, "a", zeros),
        "-i",
        raw(tmp_path, "b", zeros),
        "-o",
        raw(tmp_path, "s", zeros),
    ]
    files += ["-o", raw(tmp_path, "d", -zeros), "-n", "1"]
    code, _, err = tool("-t", pair, *files)
    assert code == 1
    assert "6 of 24 bytes, the first at 3: 0x00, 0x80 expected" in err
    assert tool("-t", pair, *files, "--atol", "0")[0] == 0


def test_random_inputs_are_the_same_in_every_run_and_bounded(tool, tmp_path):
    for dtype, low, high in [("float32", 0, 1), ("float16", 0, 1), ("int64", 0, 1), ("bool", 0, 1)]:
        folder = tmp_path / dtype
        node = doubling((64, 16), dtype)
        if dtype == "bool":
            node.graph.node[0].op_type = "And"
        program = compiled(folder, node)
        for name in ("first", "second"):
            options = ["--dump-input-buffers", "-n", "1", "--write-output-dir", tmp_path / f"{dtype}-{name}"]
            assert tool("-t", program, *options)[0] == 0
        first, second = (
            np.fromfile(tmp_path / f"{dtype}-{name}" / "x-activation-0-inf-0.bin", dtype)
            for name in ("first", "second")
        )
        assert first.tobytes() == second.tobytes()
        assert low <= first.min() < first.max() <= high


def test_unbound_random_inputs_are_any_bytes(tool, tmp_path):
    program = compiled(tmp_path / "ids", doubling((64, 16), "int64"))
    code, lines, _ = tool("-t", program, "--unbound-random", "--dump-input-buffers", "-n", "1")
    assert code == 0
    assert lines[0] == "Using unbound random inputs"
    assert len(set((tmp_path / "x-activation-0-inf-0.bin").read_bytes())) == 256


def test_bindings_file_beside_the_container(tool, tmp_path):
    program = compiled(tmp_path / "net", doubling())
    x = np.arange(8, dtype=np.float32)
    raw(program, "x.raw", x)
    document = '{"IO-files": [[{"path": "x.raw", "io-direction": "in", "elem-size": 4, "map-to": "x"}]]}'
    (program / "bindings.json").write_text(document)
    code, lines, _ = tool("-t", program, "-n", "3", "--write-output-dir", ".")
    assert code == 0
    assert lines[0] == f"Input file: {program / 'x.raw'}"
    assert np.fromfile(tmp_path / "y-activation-0-inf-0.bin", np.float32).tolist() == (x + x).tolist()
    assert stats(lines)[0] == 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("-r", "1000"), "--live-reporting-period: no effect without --live-reporting"),
        (("--aic-batch-max-memory", "1024"), "--aic-batch-max-memory: no effect without a batch of inputs"),
        (("--aic-lib-path", "lib.so"), "--aic-lib-path: no effect"),
    ],
)
def test_flags_that_do_nothing_are_named_at_any_value(tool, program, flags, message):
    code, _, err = tool("-t", program, "-n", "1", *flags)
    assert code == 0
    assert err.startswith(f"warning: {message}")


def test_flags_of_other_versions_are_taken(tool, program):
    flags = ("--bound-random", "--aic-num-activations", "2", "--threads-per-queue", "2")
    code, lines, err = tool("-t", program, "-n", "4", *flags)
    assert (code, err) == (0, "")
    assert "Using bounded random inputs" in lines
    assert tool("-t", program, "--bound-random", "--unbound-random")[0] == 2


@pytest.mark.parametrize(("first", "samples"), [(1, 1), (45, 2)])
def test_without_a_number_as_many_are_run_as_are_written(tool, program, tmp_path, first, samples):
    flags = [
        "--write-output-start-iter",
        first,
        "--write-output-num-samples",
        samples,
        "--write-output-dir",
        "out",
    ]
    raw(tmp_path, "x", np.ones(8, np.float32))
    for inputs, count in (
        ((), max(40, first + samples)),
        (("--aic-batch-input-directory", tmp_path / "in"), first + samples),
    ):
        (tmp_path / "in").mkdir(exist_ok=True)
        raw(tmp_path / "in", "x", np.ones(8, np.float32))
        code, lines, err = tool("-t", program, *inputs, *map(str, flags))
        assert (code, err) == (0, "")
        assert stats(lines)[0] == count
        assert len(list((tmp_path / "out").iterdir())) == samples


def test_live_reports_come_while_it_runs(tool, program):
    code, lines, _ = tool("-t", program, "--time", "0.5", "-l", "-r", "20")
    assert code == 0
    live = [line for line in lines if line.startswith("Live: ")]
    assert len(live) >= 2
    assert all(re.fullmatch(r"Live: InferenceCnt \d+ Period \d+ Inf/Sec \d+\.\d{3}", line) for line in live)
    # Parsers read the last line with a rate.
    assert [line for line in lines if "Inf/Sec" in line][-1] == lines[lines.index(" ---- Stats ----") + 1]


def options_of(*arguments):
    return command_line.parse(arguments).options


FIGURES = ("Mean", "Min", "P50", "P90", "P95", "P99", "Max")
LATENCY = "LatencyUs " + " ".join(rf"{name} ([\d.]+)" for name in FIGURES)


@pytest.mark.parametrize(("flags", "in_flight"), [((), 1), (("-S", "4"), 4), (("-S", "10"), 10)])
def test_latencies_are_of_single_inferences_unless_more_are_asked_for(tool, program, flags, in_flight):
    code, lines, _ = tool("-t", program, "-n", "60", "-s", *flags)
    assert code == 0
    (line,) = (line for line in lines if line.startswith("LatencyUs"))
    mean, least, p50, p90, p95, p99, most = map(float, re.match(LATENCY, line).groups())
    assert 0 < least <= p50 <= p90 <= p95 <= p99 <= most
    assert least <= mean <= most
    assert line.endswith(f" Count 60 InFlight {in_flight}")


def test_the_rate_is_measured_with_many_in_flight(tool, program, tmp_path):
    assert tool("-t", program, "-n", "30", "--json", tmp_path / "run.json", "-S", "10")[0] == 0
    assert json.loads((tmp_path / "run.json").read_text())["in_flight"] == 10
    assert options_of("-t", "x").in_flight_per_activation == 10
    assert options_of("-t", "x", "-s").in_flight_per_activation == 1
    assert options_of("-t", "x", "--json", "f").in_flight_per_activation == 1
    assert options_of("-t", "x", "-s", "-S", "7").in_flight_per_activation == 7


def test_json_has_every_sample(tool, program, tmp_path):
    path = tmp_path / "run.json"
    code, lines, _ = tool("-t", program, "-n", "25", "-a", "2", "--warm-up", "5", "--json", path)
    assert code == 0
    assert f"wrote {path}" in lines
    found = json.loads(path.read_text())
    line = next(line for line in lines if line.startswith("InferenceCnt"))
    count, microseconds, batch, rate = re.fullmatch(STATS, line).groups()
    measured = (found["inferences"], found["duration_us"], found["batch_size"])
    assert measured == (25, int(microseconds), int(batch))
    assert (int(count), found["warm_up"]) == (25, 5)
    assert found["inferences_per_second"] == pytest.approx(float(rate), abs=1e-3)
    assert (found["activations"], found["in_flight"]) == (2, 2)
    latency = found["latency"]
    assert latency["count"] == len(latency["samples_us"]) == 25
    assert latency["p50_us"] == pytest.approx(np.median(latency["samples_us"]))
    assert latency["max_us"] == max(latency["samples_us"])


def test_warm_up_is_neither_counted_nor_written_nor_compared_twice(tool, program, tmp_path):
    out = tmp_path / "out"
    write = ["--write-output-dir", out, "--write-output-num-samples", "2"]
    code, lines, _ = tool("-t", program, "-n", "3", "--warm-up", "4", "-s", *write)
    assert code == 0
    assert any(line.startswith("InferenceCnt 3 ") for line in lines)
    assert any(" Count 3 " in line for line in lines)
    assert sorted(path.name.rpartition("-inf-")[2] for path in out.iterdir()) == ["0.bin", "1.bin"]


@pytest.mark.parametrize(
    ("error", "flags", "code"),
    [
        (0.0, (), 0),
        (1e-5, (), 1),
        (1e-5, ("--rtol", "1e-4"), 0),
        (1e-5, ("--atol", "1e-4"), 0),
        (1e-2, ("--rtol", "1e-4", "--atol", "1e-4"), 1),
        (np.nan, ("--rtol", "1"), 1),
    ],
)
def test_outputs_are_compared_within_a_tolerance(tool, pair, tmp_path, error, flags, code):
    a, b = np.arange(6, dtype=np.float32), np.ones(6, np.float32)
    difference = a - b
    difference[3] += np.float32(error)
    files = ["-i", raw(tmp_path, "a", a), "-i", raw(tmp_path, "b", b), "-o", raw(tmp_path, "s", a + b)]
    found, _, err = tool("-t", pair, *files, "-o", raw(tmp_path, "d", difference), "-n", "3", *flags)
    assert found == code, err
    if code:
        assert "1 of 6 elements; the largest error is " in err
        assert ", at 3: found 2.0, expected " in err
        assert "[runner.different_output]" in err


def test_a_tolerance_without_something_to_compare_is_refused(tool, program):
    code, _, err = tool("-t", program, "--rtol", "0.1")
    assert code == 2
    assert "--rtol and --atol need -o or -c" in err


def test_several_devices(tool, program, monkeypatch):
    monkeypatch.setenv("QAIC_CPU_DEVICES", "4")
    # Cards run only programs for one device.
    several = [] if emulated_cards.are_meant() else [("3:1", "3:1")]
    for form, shown in [*several, ("2", "2"), ("2,3", "2")]:
        code, lines, err = tool("-t", program, "-D", form, "-n", "2", "-v")
        assert (code, err) == (0, "")
        assert f"Device: {shown}" in lines


@pytest.mark.virtual_card("cards run only programs for one device")
def test_a_program_of_several_devices_is_on_as_many_as_it_needs(tool, tmp_path, monkeypatch):
    devices = [{"deviceId": number, "numCores": 4} for number in range(3)]
    partitions = {
        "connections": [{"devices": [0, 1, 2], "type": "p2p"}],
        "partitions": [{"name": "Partition0", "devices": devices}],
    }
    found = resolve({"mdp_load_partition_config": partitions}, options_path=None, model_is_container=False)
    model = session_models.save(tmp_path, session_models.affine())
    compile_model(model, found.compile, found.set_compile, output_dir=tmp_path / "qpc")
    monkeypatch.setenv("QAIC_CPU_DEVICES", "5")
    for chosen, shown in (([], "0:1:2"), (["-D", "4,1,3,0"], "4:1:3"), (["-D", "2:1:0"], "2:1:0")):
        code, lines, err = tool("-t", tmp_path / "qpc", "-n", "2", "-v", *chosen)
        assert (code, err) == (0, "")
        assert f"Device: {shown}" in lines
    monkeypatch.setenv("QAIC_CPU_DEVICES", "2")
    code, _, err = tool("-t", tmp_path / "qpc", "-n", "2")
    assert code == 3
    assert "partitioned for 3 devices; kind `cpu` has 2 devices" in err
    assert "set QAIC_CPU_DEVICES=3" in err


def test_raw_buffers_are_refused_where_something_is_converted(tool, program, tmp_path):
    assert tool("-t", program, "-p", "off", "-n", "1")[0] == 0
    from qpc_support import DATA

    folder = tmp_path / "quantized"
    folder.mkdir()
    (folder / "programqpc.bin").write_bytes((DATA / "qpc" / "s05_quant_i8.qpc").read_bytes())
    code, _, err = tool("-t", folder, "-p", "off")
    assert code == 1
    assert "-p off: the buffers of this program on the device are not" in err
    assert "'image' has quantize" in err


@pytest.fixture
def noop(monkeypatch):
    """A device that computes nothing and fails as planned."""

    def configure(plan=""):
        monkeypatch.setenv("QAIC_DEVICE", "noop")
        monkeypatch.setenv("QAIC_NOOP_FAULTS", plan)

    return configure


@pytest.mark.parametrize(
    ("plan", "options", "code"),
    [
        ("execute@3=fail", [], 1),
        # If the end of an inference is late, the next inference may repeat its buffers, so the number can
        # differ.
        ("execute@3..99=stuck", ["--submit-timeout", "20", "--submit-retry-count", "0"], 3),
        ("execute@3=lost", [], 3),
        ("activate@1=no_cores", [], 3),
        ("exec@1=no_memory", [], 3),
    ],
)
def test_faults_of_the_device_end_the_run(tool, program, noop, plan, options, code):
    noop(plan)
    found, lines, err = tool("-t", program, "-n", "10", "-S", "1", *options)
    assert found == code
    assert " ---- Stats ----" not in lines
    assert "error: " in err
    assert "Traceback" not in err


def test_more_activations_than_cores_are_a_device_failure(tool, program):
    code, _, err = tool("-t", program, "-a", "17")
    assert code == 3
    expected = (
        "error: device 0 has 16 cores; -a 17 needs 17 [runner.activations]\n"
        "hint: the largest value is -a 16\n"
    )
    assert err == expected


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["-t", "nowhere"], 1, "error: nowhere: No such file or directory"),
        (["-t", "."], 1, "programqpc.bin: No such file or directory"),
        (["-n", "0"], 2, "argument -n/--num-iter: expected an integer of at least 1, found '0'"),
        (["-n", "many"], 2, "expected an integer of at least 1, found 'many'"),
        (["--time", "0"], 2, "a number of seconds greater than 0 is expected"),
        (["--time", "inf"], 2, "argument --time: expected a number"),
        (["-S", "0"], 2, "-S/--set-size"),
        (["-a", "-1"], 2, "-a/--aic-num-of-activations"),
        (["-num-itr", "5"], 2, "did you mean --num-iter?"),
        (["--num-iterations", "5"], 2, "did you mean --num-iter?"),
        (["stray"], 2, "unexpected argument stray"),
        (["-n", "4", "--time", "1"], 2, "-n and --time both set the length of the run"),
        (["-d", "0", "-D", "0"], 2, "-d and -D both select devices"),
        (["-D", "0:0"], 2, "-D '0:0' names a device twice"),
        (["-D", "0:1,2"], 2, "-D '0:1,2' is neither"),
        (["-D", ""], 2, "expected text, found ''"),
        (["-d", "5"], 3, "Device 5 invalid; the ids are: 0 [device.not_found]"),
        (["--time", "-1"], 2, "--time is -1; a number of seconds greater than 0 is expected"),
        (["-D", "0:9"], 3, "Device 9 invalid"),
        (["-p", "maybe"], 2, "expected one of on, off, found 'maybe'"),
        (["-i", "x", "--aic-batch-json-input", "y"], 2, "are different sources of inputs"),
        (["-i", "x", "--unbound-random"], 2, "--unbound-random selects random inputs"),
        (["-i", "x", "--auto-batch-input"], 2, "--auto-batch-input needs"),
        (["--aic-batch-json-input", "y", "-o", "z"], 2, "-o compares all inferences"),
        (["-i", "nowhere"], 1, "error: nowhere: No such file or directory"),
        (["-i", "."], 1, "error: .: Is a directory"),
        (["-i", "x=a b.raw"], 1, "hint: give -i 'a b.raw'"),
        (["-i", "y=a.raw"], 1, "error: y=a.raw: No such file or directory"),
        (["-o", "nowhere"], 1, "error: nowhere: No such file or directory"),
        (
            ["-i", "a", "-i", "b"],
            1,
            "-i: found 2 files, expected one for each input of the program: 'x' (32 bytes)",
        ),
        (
            ["-o", "a", "-o", "b"],
            1,
            "-o: found 2 files, expected one for each output of the program: 'y' (32 bytes)",
        ),
        (["--write-output-start-iter", "3", "-n", "3"], 2, "end at inference 4, but the run ends after 3"),
        (["--write-output-dir", "no/where"], 1, "error: no/where: No such file or directory"),
        (["--aic-batch-input-directory", "nowhere"], 1, "error: nowhere: No such file or directory"),
        (["--aic-batch-input-file-list", "nowhere"], 1, "error: nowhere: No such file or directory"),
        (["--aic-batch-json-input", "nowhere"], 1, "error: nowhere: No such file or directory"),
    ],
)
def test_bad_input_gets_one_clear_message(tool, program, options, code, message):
    base = [] if "-t" in options else ["-t", program]
    found, lines, err = tool(*base, *options)
    assert found == code
    assert message in err
    assert " ---- Stats ----" not in lines
    assert "Traceback" not in err


def test_files_of_several_inferences_get_the_option_that_runs_them(tool, program, tmp_path):
    for name in ("a", "b"):
        raw(tmp_path, name, np.zeros(8, np.float32))
    code, _, err = tool("-t", program, "-i", "a", "-i", "b")
    (hint,) = [line for line in err.splitlines() if line.startswith("hint: ")]
    option = hint.split()[1]
    (tmp_path / "list").write_text("a\nb\n")
    code, lines, _ = tool("-t", program, option, "list")
    assert code == 0
    assert any("InferenceCnt 2 " in line for line in lines)


def test_no_program_is_wrong_usage(tool):
    code, _, err = tool("-n", "5")
    assert code == 2
    assert "-t/--test-data" in err


def test_files_of_a_wrong_size(tool, program, tmp_path):
    path = raw(tmp_path, "x.raw", np.zeros(7, np.float32))
    code, _, err = tool("-t", program, "-i", path)
    assert code == 1
    assert f"{path} has 28 bytes; 'x' takes 32" in err
    assert "hint: " not in err
    code, _, err = tool("-t", program, "-o", path)
    assert code == 1
    assert f"-o {path} has 28 bytes; 'y' has 32" in err


def test_a_damaged_container(tool, tmp_path):
    (tmp_path / "programqpc.bin").write_bytes(b"not a container")
    code, _, err = tool("-t", tmp_path)
    assert code == 1
    assert "programqpc.bin" in err
    assert "Traceback" not in err


def test_a_read_only_output_folder(tool, program, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = tool("-t", program, "--write-output-dir", tmp_path / "file")
    assert code == 1
    assert "Not a directory" in err


def test_ctrl_c_ends_it_at_once(program):
    command = [
        sys.executable,
        "-u",
        "-m",
        "qaic.cli.runner",
        "-t",
        str(program),
        "--time",
        "1000",
        "-l",
        "-r",
        "5",
    ]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("Live: "):
                break
        process.send_signal(2)
        _, err = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in err


def test_help_is_success_and_cheap(capsys):
    assert run("--help") == 0
    assert "--aic-batch-json-input" in capsys.readouterr().out
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "qaic.cli.runner", "--help"],
        check=True,
        capture_output=True,
        text=True,
    ).stderr
    assert not re.search(r"\b(numpy|qaicrt|qaic\.rt|onnx|pydantic|yaml|qaic\.options\.table)\b", loaded)


def test_cores_are_free_again_afterwards(tool, program):
    for _ in range(3):
        assert tool("-t", program, "-a", "16", "-S", "1", "-n", "16")[0] == 0
    status, info = qaicrt.Util().getResourceInfo(0)
    assert status == qaicrt.QStatus.QS_SUCCESS
    assert info.nspFree == 16


def test_arrays_of_numpy_are_not_raw_bytes(tool, program, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1, 8), np.float32))
    code, _, err = tool("-t", program, "-i", "x.npy")
    assert code == 1
    assert "hint: files contain raw bytes, which array.tofile(path) of numpy writes\n" in err


def test_a_comparison_without_outputs_is_refused(tool, program, tmp_path):
    """Regression: -c without output files was only a note about a batch file, and the exit code was 0."""
    np.zeros((1, 8), np.float32).tofile(tmp_path / "x.raw")
    code, _, err = tool("-t", program, "-i", "x.raw", "-c")
    assert code == 2
    assert "-c compares with the output files of --aic-batch-json-input, which is not given" in err
