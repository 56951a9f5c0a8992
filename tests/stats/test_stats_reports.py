"""Reports of captures whose expected reports follow from their construction."""

import statistics
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import stats_buffers
import stats_captures as made
from qaic import _core, stats
from qaic.errors import StatsError
from qaic.page.timeline.capture_tracks import timeline_of
from qaic.report.files import to_csv
from qaic.report.text import to_text
from qaic.stats.reports import REPORTS, Capture, HostLatencies, diff
from qaic.stats.reports.capture import trace_reader
from qaic.stats.reports.capture.groups import Spread
from qaic.stats.reports.cores import findings
from qaic.stats.reports.time import timeline
from qaic.stats.reports.time.bottleneck import bottleneck_of
from qaic.stats.reports.time.critical_path import walk
from qaic.stats.reports.time.timeline import activity
from stats_captures import buffer, capture, cpu_program, in_row


@pytest.fixture
def mlp():
    program = cpu_program([("/l0/MatMul", "FusedGemm"), ("/l0/Relu", "Relu"), ("/l1/MatMul", "FusedGemm")])
    return buffer(program, {(0, 0): in_row([50, 10, 30], gap=5, start=10)}, span=(0, 120), device=1)


def test_operations_are_summed_by_kind(mlp):
    table = REPORTS["ops"](capture(mlp)).table("kinds")
    assert table.column("kind") == ["FusedGemm", "Relu"]
    assert table.column("time") == [80, 10]
    assert table.column("share") == pytest.approx([800 / 9, 100 / 9])
    assert table.column("count") == [2, 1]
    assert table.column("category") == ["matrix", "elementwise"]
    assert table.column("PCycles") == [None, None]


def test_nothing_captured_is_an_error():
    with pytest.raises(StatsError, match="no stats buffer"):
        Capture([])


def unnamed(ops, inference=0, **last):
    """A buffer that is opened without its program."""
    sections = stats_buffers.even_sections(ops, descriptor_ops=ops)
    for field, value in last.items():
        sections["OP"][field][-1] = value
    facts = stats_buffers.run_facts(inference=inference)
    return stats.open(_core.encode_stats(facts, sections, bytes(16)))


@pytest.mark.parametrize("sizes", [(3, 30), (30, 3)])
def test_without_a_program_every_operation_of_every_buffer_counts(sizes):
    one = Capture([unnamed(ops, inference) for inference, ops in enumerate(sizes)])
    assert [sample.readers[0].ops.count.sum() for sample in one.samples] == list(sizes)
    # The report shows the first of two inferences; both have operations.
    assert len(REPORTS["nodes"](one).tables[0].rows) == sizes[0]
    assert {len(reading.facts) for reading in one.each()} == {30}


def test_without_a_program_a_number_beyond_belief_takes_no_memory():
    with pytest.raises(StatsError, match=r"operation 4294967295 of core 0, too large for a buffer") as caught:
        REPORTS["ops"](Capture([unnamed(3, oc=2**32 - 1)]))
    assert caught.value.code == "stats.unknown_op"


def test_text_and_csv_show_the_same_rows(mlp):
    report = REPORTS["ops"](capture(mlp))
    text = to_text(report)
    assert "FusedGemm" in text
    assert "columns without values: types" not in text
    assert (
        to_csv(report.table("kinds"))
        .splitlines()[1]
        .startswith("FusedGemm,CPU,HOST,float,matrix,2,80.0,88.8")
    )


@pytest.mark.parametrize("name", REPORTS)
def test_every_report_tells_of_a_small_run(name, mlp):
    report = REPORTS[name](capture(mlp))
    assert report.name == name
    assert to_text(report).startswith(f"== {report.title} ==")
    for table in report.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)


# --- work of a card's core --------------------------------------------------------------------------------


def card():
    """One core: a copy feeds a matrix multiplication, which feeds a softmax on four threads."""
    program = made.Program(groups=made.CARD_GROUPS, thread_groups=made.CARD_THREADS)
    copy = program.op(0, "/layers.0/Copy", "aiccopytovtcm", group=2, memory="DDR", output_bytes=8192)
    multiply = program.op(
        0, "/layers.0/MatMul", "aicconvolutiond32", group=1, memory="TCM", output_bytes=4096, macs=10**6,
        deps=[{"core": 0, "oc": copy, "data": True}],
    )  # fmt: skip
    softmax = program.op(
        0, "/layers.1/Softmax", "aicsoftmax ", group=0, memory="TCM",
        deps=[{"core": 0, "oc": multiply, "data": True}],
    )  # fmt: skip
    flush = program.op(0, "/End", "aicendcyclestats", group=0, memory="DDR")
    executions = {
        (0, 5): [
            {"oc": copy, "start_u": 10, "dur_u": 5},
            {"oc": copy, "start_u": 12, "dur_u": 38, "kflags": 5, "flags": 64, "out_bytes": 8192},
        ],
        (0, 4): [{"oc": multiply, "start_u": 55, "dur_u": 200, "sync_u": 100, "flags": 16}],
    }
    for thread in range(4):
        executions[0, thread] = [
            {"oc": softmax, "start_u": 300, "dur_u": 20 + thread, "barrier_u": 3 - thread, "flags": 32},
            {"oc": flush, "start_u": 380, "dur_u": 15},
        ]
    return program, executions


@pytest.fixture
def core():
    program, executions = card()
    return capture(buffer(program, executions, span=(0, 400)))


def test_an_operation_of_several_threads_counts_once_with_the_slowest(core):
    table = REPORTS["ops"](core).table("kinds")
    softmax = dict(zip(table.column("kind"), table.rows, strict=True))["aicsoftmax"]
    assert softmax[5:7] == (1, 23)


def test_waits_are_clipped_to_the_inference(core):
    table = REPORTS["waits"](core).table("operations")
    assert table.rows == [
        ("/layers.0/MatMul/__1", "aicconvolutiond32", "HMX", 0, 0, 55, 1, "/layers.0/Copy/__0", "DMAIssue")
    ]


def test_the_critical_path_follows_the_data(core):
    report = REPORTS["critical-path"](core)
    steps = report.table("steps")
    assert steps.column("operation") == [
        "/layers.0/Copy/__0",
        "/layers.0/MatMul/__1",
        "/layers.1/Softmax/__2",
    ]
    assert steps.column("because of") == ["begin", "data", "data"]
    assert steps.column("waited") == [10, 40, 45]
    assert report.table("nodes").column("time") == [200, 23, 5]


def test_gaps_are_where_nothing_works(core):
    table = REPORTS["gaps"](core).table("longest")
    # Time between the end of the transfer and the multiplication, and between the multiplication and the
    # softmax.
    assert table.column("gap") == [45, 5]
    assert table.column("at") == [255, 50]
    assert REPORTS["gaps"](core).table("cores").rows[0][2:] == (400, 263, 65.75, 2, 50, 45, 10, 77)


def test_transfers_go_on_beside_operations(core):
    report = REPORTS["dma"](core)
    assert report.table("transfers").rows == [
        ("aiccopytovtcm", "DMAIssue", "DDR", 1, 38, 8192, 8192 / 38 / 1000)
    ]
    assert report.table("cores").rows == [(0, 0, 38, 9.5, 38)]
    assert report.table("copies").rows[0][3:5] == (1, 5)


def test_residency_is_of_the_time_in_tcm_and_ddr(core):
    assert "91.8 % of the operations' time uses TCM, which is good" in REPORTS["memory"](core).verdict[0]


def test_layers_are_families_of_numbers(core):
    report = REPORTS["layers"](core)
    assert report.table("families").rows[0][:2] == ("/layers.*", 2)
    assert report.table("layers").column("layer") == ["/layers.0", "/layers.1", "(outside layers)"]


def test_the_roofline_knows_only_what_the_compiler_does(core):
    (row,) = REPORTS["roofline"](core).table("kinds").rows
    assert row == (
        "aicconvolutiond32",
        1,
        200,
        pytest.approx(100 * 200 / 243),
        10**6,
        4096,
        10**6 / 4096,
        5,
        4096 / 2e5,
    )


def test_writing_the_statistics_is_no_work(core):
    assert REPORTS["cores"](core).table("cores").column("work") == [228]
    assert ("writing the statistics (aicendcyclestats)", 15, "us") in REPORTS["overhead"](core).table(
        "figures"
    ).rows


# --- verdicts ---------------------------------------------------------------------------------------------


def engines_at(hmx, dma, hvx_kind="elementadd", hvx=0):
    """A core whose engines work for these parts of 1000 us, each without interruption from the beginning."""
    program = made.Program(groups=made.CARD_GROUPS, thread_groups=made.CARD_THREADS)
    ops = [
        program.op(0, "/a", hvx_kind, group=0, memory="TCM"),
        program.op(0, "/b", "aicconvolutiond32", group=1, memory="TCM"),
        program.op(0, "/c", "aiccopytovtcm", group=2, memory="DDR"),
    ]
    executions = {
        (0, 0): [{"oc": ops[0], "start_u": 0, "dur_u": hvx}],
        (0, 4): [{"oc": ops[1], "start_u": 0, "dur_u": hmx}],
        (0, 5): [{"oc": ops[2], "start_u": 0, "dur_u": dma, "kflags": 5}],
    }
    return capture(buffer(program, executions, span=(0, 1000)))


@pytest.mark.parametrize(
    ("made_capture", "verdict"),
    [
        (engines_at(900, 300), "compute-bound"),
        (engines_at(300, 950), "memory-bound"),
        (engines_at(100, 300, "aicconvertfromd32", 800), "layout-bound"),
        (engines_at(100, 50), "overhead-bound"),
    ],
)
def test_the_verdict_is_what_takes_most_of_the_time(made_capture, verdict):
    assert REPORTS["overview"](made_capture).verdict[0].startswith(verdict)


def test_operations_at_the_cost_of_measuring_are_overhead():
    program = cpu_program([(f"/n{place}", "Gemm") for place in range(10)])
    made_buffer = buffer(
        program, {(0, 0): in_row([2] * 9 + [10])}, span=(0, 40), device=1,
        meta={"calibration": {"plain_us": 10.0, "profiled_us": 40.0, "per_op_us": 2.0}},
    )  # fmt: skip
    verdict = REPORTS["overview"](capture(made_buffer)).verdict
    assert verdict[0].startswith("overhead-bound")
    assert (
        "with the measurement, an inference takes 4.00 x its usual time, and each operation 2.00 us more"
        in verdict
    )
    assert any("not measured on this device" in line for line in verdict)
    table = REPORTS["overhead"](capture(made_buffer)).table("at-floor")
    assert len(table.rows) == 9
    assert table.estimated_rows == frozenset(range(9))


def test_stragglers_are_far_above_the_mean_and_one_deviation():
    program = made.Program(groups=("HMX",), thread_groups=(0,))
    durations = [10, 10, 10, 10, 10, 10, 10, 100]
    for core_number in range(len(durations)):
        program.op(core_number, "/a", "aicconvolutiond32")
    executions = {
        (number, 0): [{"oc": 0, "start_u": 0, "dur_u": duration}] for number, duration in enumerate(durations)
    }
    table = REPORTS["cores"](capture(buffer(program, executions, span=(0, 100)))).table("cores")
    assert table.column("finding") == [""] * 7 + ["critical straggler"]
    assert table.column("of the mean")[-1] == pytest.approx(100 * 8 / 170)


def test_balanced_cores_have_no_straggler():
    assert findings([5.0, 5.0, 6.0, 5.0]) == [(pytest.approx(value / 5.25), "") for value in (5, 5, 6, 5)]
    assert findings([3.0]) == [(None, "")]


@pytest.mark.parametrize("numbers", [(0, 1, 2), (0, 0, 0)])
def test_figures_are_medians_over_samples(numbers):
    """Inferences of several runs may have the same numbers."""
    program = cpu_program([("/a", "Gemm")])
    buffers = [
        buffer(program, {(0, 0): in_row([duration])}, inference=number, span=(0, duration + 1))
        for number, duration in zip(numbers, (10, 1000, 20), strict=True)
    ]
    made_capture = capture(*buffers)
    assert len(made_capture.samples) == 3
    assert REPORTS["devices"](made_capture).table("devices").rows[0][3:7] == (3, 21, 11, 1001)
    assert REPORTS["ops"](made_capture).table("kinds").column("time") == [20]
    assert REPORTS["overview"](made_capture).table("figures").rows[0] == (
        "inference time",
        21,
        11,
        1001,
        "us",
    )


def test_bodies_of_loops_are_not_counted_twice():
    program = cpu_program([("/loop", "Loop"), ("/loop/Add", "Add")])
    executions = [
        {"oc": 0, "start_u": 0, "dur_u": 100},
        *({"oc": 1, "start_u": 10 + 20 * turn, "dur_u": 15, "kflags": 9} for turn in range(4)),
    ]
    table = REPORTS["ops"](capture(buffer(program, {(0, 0): executions}))).table("kinds")
    assert dict(zip(table.column("kind"), table.column("time"), strict=True)) == {"Add": 60, "Loop": 40}


def test_sends_and_receives_are_paired():
    def device(number, sides):
        program = made.Program(network=f"QAicGraph_slice{number:02}")
        for description, transaction, size in sides:
            program.op(
                0, f"/AllReduce.{transaction}", "aicmulticastvtcm", output_bytes=size,
                transfer={"port_type": "P2P", "port_description": description, "transaction": transaction},
            )  # fmt: skip
        return buffer(program, {(0, 0): in_row([5] * len(sides))}, cores={0: {"slice": number}})

    made_capture = capture(
        device(0, [("0->1", "7", 100), ("0->1", "8", 50)]), device(1, [("1<-0", "7", 100), ("1<-0", "8", 60)])
    )
    report = REPORTS["p2p"](made_capture)
    assert report.table("matrix").rows == [(0, 1, 2, 150, 160)]
    assert report.table("unpaired").rows == [("8", 0, 1, "sends 50 bytes, receives 60")]
    assert len(REPORTS["devices"](made_capture).table("devices").rows) == 2


def test_shares_of_a_page_are_of_one_total():
    """Samples of noisy times, as on a busy machine: a kind has the same time and share in every table."""
    program = made.Program(groups=("CPU",), thread_groups=(0,))
    kinds = ["Conv", "Relu", "Concat", "Conv", "ReorderOutput", "Softmax"]
    for place, kind in enumerate(kinds):
        deps = [{"core": 0, "oc": place - 1, "data": True}] if place else []
        program.op(0, f"n{place}", kind, memory="HOST", deps=deps)
    rng = np.random.default_rng(7)
    page = capture(
        *(
            buffer(program, {(0, 0): in_row(rng.integers(10, 500, 6).tolist())}, engines={0: 16}, inference=n)
            for n in range(7)
        )
    )
    (sample,) = page.typical.samples
    assert sample.inference == _nearest_to_medians(page)
    reports = {name: report(page) for name, report in REPORTS.items()}
    total = reports["ops"].table("kinds")
    place = total.column("kind").index("Conv")
    time, part = total.column("time")[place], total.column("share")[place]
    path = reports["critical-path"].table("kinds")
    assert [row[2:4] for row in path.rows if row[0] == "Conv"] == [(time, pytest.approx(part))]
    held = reports["memory"].table("kinds")
    assert [row[3:5] for row in held.rows if row[0] == "Conv"] == [(time, pytest.approx(part))]
    categories = reports["overview"].table("categories")
    assert [row[2:4] for row in categories.rows if row[0] == "matrix"] == [(time, pytest.approx(part))]
    tables = {"ops": "kinds", "nodes": "nodes", "critical-path": "nodes", "memory": "memories"}
    sums = [sum(reports[name].table(table).column("time")) for name, table in tables.items()]
    assert sums == [pytest.approx(reports["gaps"].table("cores").column("working")[0])] * 4
    parts = dict(reports["overview"].table("parts").rows)
    assert sum(parts.values()) == pytest.approx(100)
    assert f"(inference {sample.inference} of the session)," in " ".join(reports["overview"].verdict)


def _nearest_to_medians(page):
    """Inference with the least sum of distances to the medians; of several, the one with the usual total."""
    times = {sample.inference: sample.readers[0].ops.dur_u.tolist() for sample in page.samples}
    medians = [statistics.median(column) for column in zip(*times.values(), strict=True)]

    def distance(number):
        return sum(abs(time - middle) for time, middle in zip(times[number], medians, strict=True))

    totals = {sample.inference: sample.span_us for sample in page.samples}
    usual = statistics.median(totals.values())
    return min(times, key=lambda number: (distance(number), abs(totals[number] - usual)))


def _noisy_page(times):
    program = made.Program(groups=("CPU",), thread_groups=(0,))
    for place in range(len(times[0])):
        deps = [{"core": 0, "oc": place - 1, "data": True}] if place else []
        program.op(0, f"n{place}", ["Conv", "Mul", "Relu"][place % 3], memory="HOST", deps=deps)
    return capture(
        *(
            buffer(program, {(0, 0): in_row(row)}, engines={0: 16}, inference=number)
            for number, row in enumerate(times)
        )
    )


@pytest.mark.parametrize("name", ["", "a"])
@pytest.mark.parametrize(("median", "samples"), [(1.0, 3), (80.0, 3), (80.0, 1)])
def test_one_node_is_blamed_only_if_its_time_is_ordinary(monkeypatch, name, median, samples):
    program = made.Program(groups=("CPU",), thread_groups=(0,))
    program.op(0, name, "Conv", memory="HOST")
    program.op(0, "b", "Mul", memory="HOST")
    page = capture(*[buffer(program, {(0, 0): in_row([80, 20])}, engines={0: 16})] * samples)
    ordinary = {
        node: Spread(median, median, median) for node in page.samples[0].readers[0].facts.nodes.values
    }
    monkeypatch.setattr(sys.modules["qaic.stats.reports.advice"], "spreads", lambda *_: ordinary)
    blamed = [row for row in REPORTS["overview"](page).table("advice").rows if "one node" in row[0]]
    assert len(blamed) == (median == 80.0 and samples == 3)


@example(
    [[20] * 4] * 2
    + [[20, 20, 21, 49], [20] * 4, [20, 20, 20, 47]]
    + [[20, 20, 21, 48]] * 2
    + [[20, 20, 21, 20], [29, 43, 22, 46]],
    3,
    3,
    11,
)
@given(
    st.lists(st.lists(st.integers(20, 60), min_size=4, max_size=4), min_size=9, max_size=12),
    st.integers(0, 8),
    st.integers(0, 3),
    st.integers(0, 4000),
)
def test_an_operation_that_the_host_interrupted_is_never_blamed(times, spiked, operation, extra):
    """One operation of one inference takes up to 4 ms more, and all totals are equal, or nearly so."""
    times = [list(row) for row in times]
    times[spiked][operation] += 4000 + extra
    # In every third example, the outlier makes the total ordinary: all other inferences are slower as a
    # whole.
    for row in times if extra % 3 == 0 else ():
        if row is not times[spiked]:
            for place in range(4):
                row[place] += (4000 + extra) // 4
    page = _noisy_page(times)
    (sample,) = page.typical.samples
    assert sample.inference == _nearest_to_medians(page)
    median = statistics.median(row[operation] for row in times)
    blamed = [row[1] for row in REPORTS["overview"](page).table("advice").rows if "one node" in row[0]]
    if times[sample.inference][operation] > 3 * median:
        assert not any(text.startswith(f"n{operation}:") for text in blamed)
    row = next(row for row in REPORTS["nodes"](page).table("nodes").rows if row[0] == f"n{operation}")
    column = [time[operation] for time in times]
    assert row[4:7] == (median, min(column), max(column))


@pytest.mark.parametrize("count", [2, 3, 10, 20])
def test_every_part_of_a_page_is_of_the_same_inference(count):
    rng = np.random.default_rng(count)
    page = _noisy_page(rng.integers(10, 500, (count, 5)).tolist())
    (sample,) = page.typical.samples
    timeline = timeline_of(page)
    title = timeline.samples[timeline.shown].name
    assert title.startswith(f"{sample.inference} (")
    assert f"(inference {sample.inference} of the session)," in " ".join(REPORTS["overview"](page).verdict)


def test_a_node_that_is_slow_in_one_inference_alone_is_not_the_verdict():
    """Each inference is as far from the medians as the others, and each has an interrupted operation."""
    page = _noisy_page([[4000, 30, 30], [30, 4000, 30], [30, 30, 4000]])
    assert not [row for row in REPORTS["overview"](page).table("advice").rows if "one node" in row[0]]
    (verdict,) = REPORTS["nodes"](page).verdict
    (sample,) = page.typical.samples
    assert not verdict.startswith(f"n{sample.inference} ")


def _with_spans(spans):
    program = cpu_program([("/l0/MatMul", "FusedGemm")])
    return capture(
        *(
            buffer(program, {(0, 0): in_row([span - 10])}, span=(0, span), device=1, inference=number)
            for number, span in enumerate(spans)
        )
    )


@pytest.mark.parametrize("outlier", [None, 10, 5000])
@pytest.mark.parametrize(("factor", "is_noise"), [(1.0, True), (1.02, True), (1.5, False), (0.6, False)])
@pytest.mark.parametrize("is_new", [False, True])
def test_one_outlier_does_not_decide_whether_a_difference_is_noise(outlier, factor, is_noise, is_new):
    """Regression: one slow inference in twenty made a difference of a half "noise"."""
    rng = np.random.default_rng(7)
    spans = [rng.integers(950, 1050, 20), (factor * rng.integers(950, 1050, 20)).astype(int)]
    if outlier is not None:
        spans[is_new][11] = outlier
    report = diff(*map(_with_spans, spans))
    assert any("noise" in sentence for sentence in report.verdict) is is_noise
    rows = {row[0]: row[1:3] for row in report.table("inference").rows}
    for name, values in (("lower quartile", 25), ("upper quartile", 75), ("min", 0), ("max", 100)):
        assert rows[name] == pytest.approx([np.percentile(of_capture, values) for of_capture in spans])


def test_a_difference_says_when_binaries_differ(core):
    program, executions = card()
    program.cores[0][1]["output_bytes"] += 1
    executions[0, 4][0]["dur_u"] = 100
    report = diff(core, capture(buffer(program, executions, span=(0, 300))))
    assert report.verdict[0].endswith("takes 25.0 % less time than the baseline (400 us -> 300 us)")
    assert report.verdict[1].startswith("the binaries differ: counts of operations compare only within one")
    assert report.table("kinds").rows[0] == ("aicconvolutiond32", 200, 100, -100, -50, 1, 1)
    assert "the binaries differ" not in " ".join(diff(core, core).verdict)


def test_a_difference_joins_nodes_that_are_fused_otherwise():
    """float32 fuses an activation with its convolution; int8 fuses a sum with the next convolution."""

    def measured(*ops):
        program = made.Program()
        for name, nodes in ops:
            program.op(0, name, "FusedConv", nodes=list(nodes))
        return capture(buffer(program, {(0, 0): in_row([10 * (place + 1) for place in range(len(ops))])}))

    baseline = measured(("c1", ["c1", "r1"]), ("c2", ["c2"]), ("add", ["add"]), ("end", ["end"]))
    new = measured(("c1", ["c1"]), ("r1", ["r1"]), ("c2", ["c2", "add"]), ("Reorder", []))
    rows = {row[0]: row[1:4] for row in diff(baseline, new).table("nodes").rows}
    assert rows == {
        "c1 + r1": (10, 30, 20),
        "c2 + add": (50, 30, -20),
        "end": (40, None, -40),
        "Reorder": (None, 40, 40),
    }
    # In the other direction, the rows are the same.
    assert {row[0]: row[2:0:-1] for row in diff(new, baseline).table("nodes").rows} == {
        name: row[:2] for name, row in rows.items()
    }


def test_a_difference_does_not_join_a_chain_of_nodes_that_overlap():
    """int8 assigns an activation to the next convolution; float32 assigns it to the previous one."""

    def measured(ops):
        program = made.Program()
        for name, nodes in ops:
            program.op(0, name, "Conv", nodes=nodes)
        return capture(buffer(program, {(0, 0): in_row([10] * len(ops))}))

    before = measured([(f"c{n}", [f"c{n}", f"r{n}"]) for n in range(9)])
    after = measured([(f"c{n}", [f"r{n - 1}", f"c{n}"] if n else ["c0"]) for n in range(9)])
    assert [row[:4] for row in diff(before, after).table("nodes").rows] == [
        (f"c{n}", 10, 10, 0) for n in range(9)
    ]


def test_latencies_are_read_from_the_report_and_from_samples():
    text = "t\np\na\n\nSample, devExecUs, enqTimeUs, execTotalUs, totalRoundtripTimeUs, queueDepth\n"
    text += "".join(f"{i}, N/A, 1.5, {i}.0, {i + 2}.25, 0\n" for i in range(100))
    made_capture = Capture([], host=HostLatencies.of_report(text))
    report = REPORTS["host-latency"](made_capture)
    rows = {row[0]: row for row in report.table("stages").rows}
    assert rows["total"][1:3] == (51.75, 100)
    assert rows["total"][4] == pytest.approx(np.percentile(np.arange(100) + 2.25, 50))
    assert "device: execution" in report.table("stages").note
    assert report.table("queue").column("max") == [0]
    fields = (
        "enqueued_ns begun_ns inputs_ready_ns executed_ns outputs_ready_ns completed_ns queue_depth in_queue"
    )
    times = np.zeros(2, [(name, "<u8") for name in fields.split()])
    times["begun_ns"], times["completed_ns"] = 1000, 9000
    assert list(HostLatencies.of_samples(times).columns["totalRoundtripTimeUs"]) == [9, 9]


@pytest.mark.parametrize(
    "text", ["", "a, b\n1, 2\n", "totalRoundtripTimeUs, x\n1\n", "totalRoundtripTimeUs\nabc\n"]
)
def test_foreign_latency_files_are_refused(text):
    with pytest.raises(StatsError) as caught:
        HostLatencies.of_report(text, source="f.txt")
    assert caught.value.code == "stats.latency_format"
    assert str(caught.value).startswith("f.txt: ")


def test_names_cannot_move_the_cursor_or_run_in_a_spreadsheet():
    program = cpu_program([("=cmd|'x'!A1\x1b[2J", "Gemm")])
    report = REPORTS["nodes"](capture(buffer(program, {(0, 0): in_row([5])})))
    assert "\x1b" not in to_text(report)
    assert to_csv(report.tables[0]).splitlines()[1].startswith("'=cmd")


# --- properties -------------------------------------------------------------------------------------------


@st.composite
def captures(draw):
    """Captures of one device: random programs, all groups have operations, random times without nesting."""
    groups = draw(st.integers(1, 3))
    thread_groups = (*range(groups), *draw(st.lists(st.integers(0, groups - 1), max_size=2)))
    program = made.Program(groups=made.CARD_GROUPS[:groups], thread_groups=thread_groups)
    kinds = ["aicconvolutiond32", "aicsoftmax", "aiccopytovtcm", "FusedGemm", "Foo"]
    cores = draw(st.integers(1, 3))
    for core_number in range(cores):
        for place in range(draw(st.integers(groups, 8))):
            program.op(
                core_number, f"/layers.{place % 3}/n{place}", draw(st.sampled_from(kinds)),
                group=place % groups,
                memory=draw(st.sampled_from(["TCM", "DDR"])), output_bytes=draw(st.integers(0, 4096)),
                deps=[{"core": core_number, "oc": place - 1, "data": True}] if place else [],
            )  # fmt: skip
    samples = []
    for inference in range(draw(st.integers(1, 2))):
        executions = {}
        for core_number in range(cores):
            for thread, group in enumerate(thread_groups):
                mine = [oc for oc, op in enumerate(program.cores[core_number]) if op["group"] == group]
                now, ops = 100, []
                for oc in draw(st.lists(st.sampled_from(mine), max_size=6)):
                    # Waits are between executions; waits before the first and after the last execution are
                    # clipped.
                    gap = draw(st.integers(0, 20))
                    left = draw(st.integers(0, gap))
                    if ops:
                        ops[-1]["barrier_u"] = left
                    sync = gap - left if ops else draw(st.integers(0, 200))
                    now += gap
                    duration = draw(st.integers(0, 30))
                    flags = draw(st.sampled_from([0, 16, 48]))
                    ops.append({"oc": oc, "start_u": now, "dur_u": duration, "flags": flags, "sync_u": sync})
                    now += duration
                if ops:
                    ops[-1]["barrier_u"] = draw(st.integers(0, 200))
                executions[core_number, thread] = ops
        end = max((op["start_u"] + op["dur_u"] for ops in executions.values() for op in ops), default=100)
        samples.append(buffer(program, executions, span=(90, end + 5), inference=inference))
    return capture(*samples)


#: Tables whose rows contain all of the time; kinds of `roofline` and copies of `dma` are a part of it.
WHOLE = {"nodes", "layers", "memories", "categories"}


def expected_times(one):
    """The largest sum of a thread for each (core, oc), with simple loops."""
    sums = {}
    for thread in one.threads:
        own = {}
        first = int(thread["first_op"])
        for op in one.ops[first : first + int(thread["op_count"])]:
            key = (int(op["core"]), int(op["oc"]))
            own[key] = own.get(key, 0) + int(op["dur_u"])
        for key, value in own.items():
            sums[key] = max(sums.get(key, 0), value)
    return sums


@given(captures())
@settings(max_examples=40)
def test_sums_of_reports_are_sums_of_operations(made_capture):
    # Reports of several samples show medians, whose sums depend on the set of values.
    made_capture = Capture(made_capture.buffers[:1])
    whole = sum(expected_times(made_capture.buffers[0]).values())
    for name, table in (("ops", "kinds"), ("nodes", "nodes"), ("layers", "layers"), ("memory", "memories"),
                        ("engines", "categories")):  # fmt: skip
        assert sum(REPORTS[name](made_capture).table(table).column("time")) == pytest.approx(whole)


@given(captures())
@settings(max_examples=40)
def test_the_overview_states_the_memory_that_the_report_on_memory_states(made_capture):
    stated = [line for line in REPORTS["overview"](made_capture).verdict if line.endswith("uses TCM")]
    assert all(line in REPORTS["memory"](made_capture).verdict[0] for line in stated)


@pytest.mark.parametrize("kind", ["Foo", "aicsoftmax", "aiccopytovtcm", "elementadd"])
def test_engines_that_work_at_the_same_time_take_no_more_than_all_of_it(kind):
    program = made.Program(groups=made.CARD_GROUPS, thread_groups=made.CARD_THREADS)
    for place, _ in enumerate(made.CARD_THREADS):
        program.op(0, f"n{place}", kind, group=made.CARD_THREADS[place])
    executions = {(0, thread): in_row([100], ocs=[thread]) for thread, _ in enumerate(made.CARD_THREADS)}
    parts = dict(REPORTS["overview"](capture(buffer(program, executions))).table("parts").rows)
    assert max(parts.values()) == pytest.approx(100)


@pytest.mark.parametrize("floor_us", [None, 1.0, 1e6])
def test_vector_threads_with_different_work_take_no_more_than_all_of_it(floor_us):
    """The report also works without a matrix engine, and without values that cannot be measured."""
    kinds = ["aicconvolutiond32", "aicsoftmax", "elementadd", "Foo"]
    program = made.Program(groups=("HVX",), thread_groups=(0,) * len(kinds))
    for place, kind in enumerate(kinds):
        program.op(0, f"n{place}", kind)
    executions = {(0, thread): in_row([100], ocs=[thread]) for thread, _ in enumerate(kinds)}
    found = bottleneck_of(capture(buffer(program, executions)), floor_us)
    parts = [*found.parts.values(), found.other]
    assert all(0 <= part <= 100 for part in parts)
    assert max(parts) == pytest.approx(100)


@given(captures())
@settings(max_examples=40)
def test_no_part_is_more_than_the_whole(made_capture):
    for name, make in REPORTS.items():
        for table in make(made_capture).tables:
            for column in table.columns:
                if column.kind != "percent":
                    continue
                cells = [cell for cell in table.column(column.name) if cell is not None]
                assert all(-1e-9 <= cell <= 100 + 1e-9 for cell in cells), (name, table.name, column.name)
                if column.name == "share" and cells and table.name in WHOLE:
                    assert sum(cells) == pytest.approx(100)


@given(captures())
@settings(max_examples=40)
def test_idle_and_busy_time_are_the_whole_span(made_capture):
    for reading in made_capture.each():
        for facts in reading.cores:
            found = activity(reading, facts)
            chosen = reading.buffer.ops[reading.buffer.ops["core"] == facts.number]
            ticks = np.zeros(facts.end_u + 1, bool)
            for op in chosen:
                ticks[int(op["start_u"]) : int(op["start_u"]) + int(op["dur_u"])] = True
            assert found.busy_u == ticks.sum()
            assert found.busy_u + found.idle_u == facts.span_u


@given(captures())
@settings(max_examples=40)
def test_the_critical_path_goes_back_in_time(made_capture):
    for reading in made_capture.each():
        steps, whole = walk(reading)
        assert whole
        assert all(before.end_u <= after.start_u + 1 for before, after in pairwise(steps))
        if steps:
            ends = [int(op["start_u"]) + int(op["dur_u"]) for op in reading.buffer.ops]
            assert steps[-1].end_u == max(ends)


@given(captures())
@settings(max_examples=40)
def test_what_is_read_in_pieces_is_what_is_read_at_once(made_capture):
    whole = made_capture.each()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_reader, "PIECE", 2)
        patch.setattr(timeline, "PIECE", 2)
        in_pieces = Capture(made_capture.buffers).each()
        for one, other in zip(whole, in_pieces, strict=True):
            for field in vars(one.ops):
                np.testing.assert_array_equal(getattr(one.ops, field), getattr(other.ops, field))
            assert one.threads == other.threads
            assert [activity(one, core) for core in one.cores] == [
                activity(other, core) for core in other.cores
            ]


# --- text -------------------------------------------------------------------------------------------------

GOLDEN_NODES = """\
== Nodes of the model ==
/layers.0/MatMul takes 82.3 % of the time of all operations

Nodes
  node               count  time us  share %  wall span us  work per span  waited us    output  matrix us
  /layers.0/MatMul       1      200     82.3           200           1.00       55.0  4.00 KiB        200
  /layers.1/Softmax      1     23.0      9.5          23.0           1.00          0   0 bytes          0
  /End                   1     15.0      6.2          15.0           1.00          0   0 bytes          0
  /layers.0/Copy         1     5.00      2.1          40.0          0.125          0  8.00 KiB          0
  columns without room: movement, normalize, stats flush; see --format json
"""


def test_the_text_of_a_capture_is_as_it_was(core):
    text = to_text(REPORTS["nodes"](core), width=110, whole="--format json")
    assert text == GOLDEN_NODES


def test_waits_that_a_level_leaves_out_are_not_called_impossible():
    made_buffer = buffer(cpu_program([("/a", "Gemm")]), {(0, 0): in_row([50])}, device=1)
    note = REPORTS["overview"](capture(made_buffer)).table("figures").note
    assert note.endswith(
        "not measured on this device, or the stats level is below 50: input wait, output wait"
    )
    assert "wait" not in note.split(";")[0]


@pytest.mark.parametrize("width", [40, 80, 120, 300])
@pytest.mark.parametrize("name", REPORTS)
def test_text_fits_the_terminal(name, width, core):
    for line in to_text(REPORTS[name](core), width=width).splitlines():
        assert len(line) <= max(width, 60)
