"""Verdicts of measurements that other programs disturbed: they claim less, and state the reason."""

import pytest

from qaic.stats.reports import REPORTS, diff
from qaic.stats.reports.time.disturbance import ProcessorWaits
from stats_captures import buffer, capture, cpu_program, in_row


def _with_spans(spans):
    program = cpu_program([("/l0/MatMul", "FusedGemm")])
    return capture(
        *(
            buffer(program, {(0, 0): in_row([span // 2])}, span=(0, span), device=1, inference=number)
            for number, span in enumerate(spans)
        )
    )


STEADY = [100, 104, 98, 101, 99, 103, 102, 100]


@pytest.mark.parametrize(
    ("spans", "is_disturbed"),
    [
        (STEADY, False),
        ([*STEADY, 3300], False),
        ([100, 101, 99, 100, 200, 210, 190, 205], True),
        # Times of a few ticks of the clock cannot be told apart.
        ([2, 2, 2, 4, 4, 4], False),
        ([20, 20, 20, 40, 40, 40], True),
        ([100], False),
    ],
)
@pytest.mark.parametrize("waited_s", [None, 0.0, 0.09, 0.11, 0.9])
def test_the_verdict_is_not_certain_if_the_measurement_was_disturbed(spans, is_disturbed, waited_s):
    one = _with_spans(spans)
    one.waits = None if waited_s is None else ProcessorWaits(measured_s=1.0, waited_s=waited_s)
    has_waited = (waited_s or 0.0) > 0.1
    verdict = REPORTS["overview"](one).verdict
    assert verdict[0].startswith("not certain, ") is (is_disturbed or has_waited)
    assert any("the inferences differ" in line for line in verdict) is is_disturbed
    assert any("waited for a processor" in line for line in verdict) is has_waited
    assert any("-bound" in line for line in verdict) is not (is_disturbed or has_waited)
    steady = _with_spans(STEADY)
    for pair in ((one, steady), (steady, one)):
        uncertain = [line for line in diff(*pair).verdict if line.startswith("not certain, ")]
        assert len(uncertain) == is_disturbed + has_waited
        assert all(("the baseline" in line) is (pair[0] is one) for line in uncertain)
