"""The cost of measuring in reports, from the calibration of a capture."""

import pytest

from qaic.report.text import to_text
from qaic.stats.reports import REPORTS
from qaic.stats.reports.time.overhead import calibration
from stats_captures import buffer, capture, cpu_program, in_row


def test_rows_at_the_cost_of_measuring_are_marked():
    program = cpu_program([("/a", "Gemm"), ("/b", "Relu")])
    meta = {"calibration": {"plain_us": 50.0, "profiled_us": 55.0, "per_op_us": 3.0}}
    text = to_text(REPORTS["nodes"](capture(buffer(program, {(0, 0): in_row([50, 2])}, meta=meta))))
    lines = text.splitlines()
    assert [line[0] for line in lines if line[2:4] in {"/a", "/b"}] == [" ", "~"]
    assert "  ~ within the cost of measuring" in lines


def test_a_factor_below_one_is_noise():
    meta = {"calibration": {"plain_us": 900.0, "profiled_us": 100.0}}
    made_buffer = buffer(cpu_program([("/a", "Gemm")]), {(0, 0): in_row([50])}, meta=meta, device=1)
    assert any(
        "did not make inferences slower" in line for line in REPORTS["overview"](capture(made_buffer)).verdict
    )


@pytest.mark.parametrize(
    ("costs", "floor"),
    [([0.0, 74.0, 10.0, 0.0, 0.0], None), ([2.0, 74.0, 0.0], 2.0), ([0.0], None)],
)
def test_a_cost_of_nothing_counts_among_the_samples(costs, floor):
    program = cpu_program([("/a", "Gemm")])
    samples = [
        buffer(
            program,
            {(0, 0): in_row([5])},
            meta={"calibration": {"plain_us": 50.0, "profiled_us": 55.0, "per_op_us": cost}},
            inference=number,
        )
        for number, cost in enumerate(costs)
    ]
    assert calibration(capture(*samples)).floor_us == floor


def test_there_is_no_floor_below_the_noise():
    meta = {"calibration": {"plain_us": 900.0, "profiled_us": 100.0, "per_op_us": 40.0}}
    report = REPORTS["overhead"](
        capture(buffer(cpu_program([("/a", "Gemm")]), {(0, 0): in_row([5])}, meta=meta))
    )
    figures = {row[0]: row[1] for row in report.table("figures").rows}
    assert figures["cost of measuring an operation"] is None
    assert [table.name for table in report.tables] == ["figures"]
