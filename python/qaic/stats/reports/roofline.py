"""Work per byte and speed of operations, if the compiler knows their work."""

from dataclasses import replace

from qaic.report import Report, Table
from qaic.stats.reports.capture import Capture
from qaic.stats.reports.capture.groups import Sums, share
from qaic.support.text import three_digits


def roofline(capture: Capture) -> Report:
    """Report multiplications, bytes, and their rates, by kind and by node."""
    capture = capture.typical
    whole = Sums(capture, lambda facts: facts.kinds).total()
    kinds, nodes = (_table(capture, name, whole) for name in ("kind", "node"))
    if not kinds.rows:
        note = "the descriptor does not contain the number of multiplications of any operation"
        return Report("roofline", "Work and bytes", [], [replace(kinds, note=note)])
    note = (
        "bytes count only outputs and constants, so they are a lower bound;"
        " operations with an unknown number of multiplications are omitted"
    )
    macs, time = (sum(float(str(cell or 0)) for cell in kinds.column(name)) for name in ("MACs", "time"))
    verdict = [
        f"{three_digits(macs / (time or 1) / 1000)} GMAC/s in operations with known work, which take"
        f" {share(time, whole) or 0:.1f} % of the operations' time"
    ]
    return Report("roofline", "Work and bytes", verdict if time else [], [replace(kinds, note=note), nodes])


def _table(capture: Capture, name: str, whole: float) -> Table:
    """Return the table of operations with a known number of multiplications."""
    sums = Sums(capture, lambda facts: getattr(facts, f"{name}s"))
    macs = sums.of("macs")
    columns, rows = sums.rows(
        f"{name} | count | timed | timed share | MACs | bytes | MACs per byte | MAC rate | memory rate",
        order="timed",
        only=lambda key: bool(macs[key]),
        whole=whole,
    )
    return Table(f"{name}s", f"By {name}", columns, rows)
