"""`qaic-opstats report`: names, files, formats and errors, with complete outputs."""

import csv
import json

import pytest

import qaic.stats
import stats_buffers
from qaic import _core
from qaic.cli import console
from qaic.cli.opstats.report import report as report_command
from qaic.stats.reports import REPORTS

FACTS = stats_buffers.descriptor_facts([1000])
PROGRAM = qaic.stats.Descriptor.from_json(json.dumps(FACTS))


def encoded(inference=0, ops=30, fingerprint=PROGRAM.fingerprint):
    sections = {**stats_buffers.even_sections(ops), "META": b"{}"}
    return _core.encode_stats({**stats_buffers.run_facts(), "inference": inference}, sections, fingerprint)


def name_of(inference):
    return f"aic-profiling-program-0-activation-0-inf-{inference}-net-aiccyclecounts.bin"


@pytest.fixture
def stats(tmp_path):
    folder = tmp_path / "stats"
    folder.mkdir()
    for inference in range(3):
        (folder / name_of(inference)).write_bytes(encoded(inference))
    return folder


@pytest.fixture
def report(monkeypatch, capsys):
    """Runs the sub-command; the program of every container is the one above."""
    monkeypatch.setattr(qaic.stats, "descriptors", lambda _path, **_: [PROGRAM])

    def run(*arguments):
        try:
            code = console.run(report_command, [str(argument) for argument in arguments])
        except SystemExit as error:
            code = error.code
        return code, *capsys.readouterr()

    return run


def test_the_overview_comes_first(report, stats):
    code, out, err = report("--qpc", "x", "-i", stats)
    assert (code, err) == (0, "")
    titles = [line for line in out.splitlines() if line.startswith("==")]
    assert titles == ["== Overview ==", "== Operations by kind ==", "== Nodes of the model =="]
    assert "compute-bound" in out
    assert "median of 3 samples" in out
    assert all(len(line) <= 120 for line in out.splitlines())


def test_named_reports_and_files(report, stats):
    file = stats / name_of(1)
    code, out, err = report("gaps", file, "engines", "--qpc", "x")
    assert (code, err) == (0, "")
    # Options can be between the names and the files.
    assert report("gaps", "engines", "--qpc", "x", file) == (0, out, "")
    assert [line for line in out.splitlines() if line.startswith("==")] == [
        "== Idle windows ==",
        "== Engines ==",
    ]


def test_without_a_program_operations_have_numbers(report, stats):
    code, out, err = report("ops", "-i", stats)
    assert (code, err) == (0, "")
    assert "unknown" in out


def test_csv_files_hold_what_json_holds(report, stats, tmp_path):
    assert report("--qpc", "x", "-i", stats, "--format", "json", "-o", tmp_path / "json")[0] == 0
    code, out, _ = report("--qpc", "x", "-i", stats, "--format", "csv", "-o", tmp_path / "csv")
    assert code == 0
    reports = json.loads((tmp_path / "json" / "reports.json").read_text())
    assert [one["name"] for one in reports] == list(REPORTS)
    listed = out.splitlines()
    assert listed[0] == "Generated report outputs:"
    assert {line.removeprefix(" ") for line in listed[1:]} == {str(p) for p in (tmp_path / "csv").iterdir()}
    for one in reports:
        for table in one["tables"]:
            with (tmp_path / "csv" / f"{one['name']}.{table['name']}.csv").open() as file:
                header, *rows = csv.reader(file)
            assert len(header) == len(table["columns"])
            values = [list(row.values()) for row in table["rows"]]
            assert rows == [["N/A" if cell is None else str(cell) for cell in row] for row in values]


def test_the_page_has_the_verdict(report, stats, tmp_path):
    code, out, err = report("--qpc", "x", "-i", stats, "--format", "html", "-o", tmp_path / "page")
    assert (code, err) == (0, "")
    path = tmp_path / "page" / "report.html"
    assert out == f"Generated report outputs:\n {path}\n"
    assert "compute-bound" in path.read_text()


def test_a_difference_names_both_sides(report, stats, tmp_path):
    other = tmp_path / "other.bin"
    other.write_bytes(encoded(9, ops=60))
    code, out, err = report("--qpc", "x", "-i", stats, "--against", other)
    assert (code, err) == (0, "")
    assert out.startswith(f"== From {other} to {stats} ==")
    assert "the new program takes 50.0 % less time than the baseline" in out


def test_bad_files_are_named_and_the_others_reported(report, stats):
    (stats / name_of(7)).write_bytes(encoded(7)[:100])
    (stats / name_of(8)).write_bytes(encoded(8, fingerprint=bytes(16)))
    code, out, err = report("--qpc", "x", "-i", stats, "overview")
    assert code == 1
    assert "median of 3 samples" in out
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2
    assert all(name_of(number) in line for number, line in zip((7, 8), errors, strict=True))
    assert "[stats.other_program]" in errors[1]


def test_the_hint_for_the_buffer_of_another_program_names_options(report, stats, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for number in (1, 2):
        (other / name_of(number)).write_bytes(encoded(number, fingerprint=bytes(16)))
    for option, arguments in (("--qpc", ["-i", other]), ("--against-qpc", ["-i", stats, "--against", other])):
        code, _, err = report("--qpc", "x", *arguments)
        assert code == 1
        hints = [line for line in err.splitlines() if line.startswith("hint: ")]
        assert hints == [
            f"hint: {option} expects the container of the buffers; --force reads the buffers anyway"
        ]
        # One mistake causes one error, for any number of files.
        mistakes = [line for line in err.splitlines() if "from another program" in line]
        assert len(mistakes) == 1
        assert f"{other / name_of(1)} and 1 other file: the buffer is " in mistakes[0]


def test_no_file_of_the_name_says_which(report, tmp_path):
    code, out, err = report("-i", tmp_path)
    assert (code, out) == (1, "")
    assert f"{tmp_path}: no file is named <prefix>-program-<P>" in err


def test_only_bad_files_are_a_failure(report, tmp_path):
    (tmp_path / name_of(0)).write_bytes(b"")
    code, out, err = report("-i", tmp_path)
    assert (code, out) == (1, "")
    assert "found no valid stats buffer in 1 file" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no stats buffer: give files"),
        (["overveiw", "-i", "."], "did you mean overview?"),
        (["diff", "-i", "."], "diff needs --against"),
        (["-i", ".", "--format", "html"], "--format html needs --output-dir"),
        (["-i", ".", "--fromat", "csv"], "did you mean --format?"),
    ],
)
def test_wrong_usage(report, arguments, message):
    code, out, err = report(*arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_latencies_beside_the_buffers_are_used(report, stats):
    (stats / "aic-profiling-program-0-latency.txt").write_text(
        "a\nb\nc\n\nSample, enqTimeUs, totalRoundtripTimeUs\n0, 1.0, 4.0\n1, 3.0, 6.0\n"
    )
    code, out, err = report("--qpc", "x", "-i", stats, "host-latency")
    assert (code, err) == (0, "")
    assert "waiting in the queue" in out
    code, alone, _ = report("--latency", stats / "aic-profiling-program-0-latency.txt")
    assert (code, alone) == (0, out)


def test_an_output_directory_that_cannot_be_made(report, stats, tmp_path):
    code, out, err = report("-i", stats, "-o", tmp_path / "a" / "b")
    assert (code, out) == (1, "")
    assert str(tmp_path / "a" / "b") in err


@pytest.mark.parametrize("place", range(5))
def test_names_and_files_stand_anywhere(report, stats, place):
    """A name and a file, with options before, between and after them."""
    file = stats / name_of(0)
    plain = report("nodes", file, "--qpc", "x", "--format", "json")
    assert plain[0] == 0
    words = ["--qpc", "x", "--format", "json"]
    orders = [
        [*words, "nodes", file],
        ["nodes", *words, file],
        [file, *words[:2], "nodes", *words[2:]],
        [*words[:2], file, *words[2:], "nodes"],
        [*words[:2], "nodes", *words[2:], file],
    ]
    assert report(*orders[place]) == plain


def test_unknown_options_are_named_in_any_order(report, stats):
    for words in (["nodes", "--qcp", "x"], ["--qcp", "x", "nodes"]):
        code, _, err = report(*words, stats / name_of(0))
        assert code == 2
        assert "unknown option --qcp; did you mean --qpc?" in err
