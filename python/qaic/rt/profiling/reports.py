"""Forms of profiles: texts for callbacks, files for folders."""

import statistics
from collections.abc import Iterator
from pathlib import Path

from qaic import _core
from qaic.rt.enums import QAicProfilingTypeEnum
from qaic.support.atomic_io import replace_bytes
from qaic.support.program_names import PREFIX, buffer_name, latency_name, metrics_name, trace_name

LATENCY = QAicProfilingTypeEnum.QAIC_PROFILING_INFERENCE_LATENCY_TYPE
TRACE = QAicProfilingTypeEnum.QAIC_PROFILING_INFERENCE_TRACE_TYPE
RAW_DEVICE_STATS = QAicProfilingTypeEnum.QAIC_PROFILING_INFERENCE_RAW_DEVICE_STATS_TYPE
DEV_KPI = QAicProfilingTypeEnum.QAIC_PROFILING_INFERENCE_DEV_KPI_TYPE

#: True if a type needs the stats buffers of devices; ``None``: only if the compiler was asked for them
NEEDS_DEVICE: dict[QAicProfilingTypeEnum, bool | None] = {
    LATENCY: None,
    TRACE: False,
    RAW_DEVICE_STATS: True,
    DEV_KPI: True,
}

_COLUMN = 15


def report(samples: _core.Samples, kind: QAicProfilingTypeEnum) -> str:
    """Return one text for all programs of a profile.

    The report of a program without samples has only a head, or is missing if the program was removed.

    Blocking: decodes stats buffers.
    """
    sampled = set(samples.times()["program"].tolist())
    programs = enumerate(samples.programs)
    numbers = [number for number, facts in programs if number in sampled or facts["is_profiled"]]
    if kind is TRACE:
        return samples.host_trace().decode()
    if kind is DEV_KPI:
        return "\n".join(device_report(samples, number) for number in numbers)
    return "\n".join(samples.latency_report(number, always=True) or "" for number in numbers)


def device_report(samples: _core.Samples, program: int) -> str:
    """Return count, mean, extremes and standard deviation of the metrics of a program on the device.

    A metric that was not measured has no row.
    """
    measured = [metrics for _, _, metrics in samples.device_kpis(program)]
    suffix = f"_Func_{program}"
    counted = f"ProfilingSamples{suffix}"
    lines = ["--- Cumulative Device Metrics Report ---"]
    lines += _table(["Metric", "Value", "Unit"], [[counted, str(len(measured)), "Samples"]])
    rows = []
    for metric in measured[0] if measured else ():
        values = [value for metrics in measured if (value := metrics[metric]) is not None]
        if values:
            figures = (statistics.fmean(values), min(values), max(values), statistics.pstdev(values))
            rows.append([metric + suffix, *(f"{figure:.3f}" for figure in figures)])
    lines.append("--- Aggregated Device Metrics Report ---")
    lines += _table(["Metric", "Avg", "Min", "Max", "Std"], rows)
    return "\n".join(lines) + "\n"


def operations_report(samples: _core.Samples, index: int, program: int, *, as_trace: bool) -> bytes | None:
    """Return the measurements of the device in a sample: a summary, or a Chrome trace if `as_trace` is true.

    Returns None if the sample has no stats buffer, or if nothing describes the buffer. Blocking.
    """
    content, descriptor = samples.stats(index), samples.descriptor(program)
    if content is None or descriptor is None:
        return None
    buffer = _core.StatsBuffer(content, descriptor)
    if not as_trace:
        return _core.stats_summary(buffer, descriptor).encode()
    return bytes(_core.stats_trace([(buffer, descriptor, samples.programs[program]["network"], None)]))


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a table in the form of the runner: all columns but the first have 15 characters."""
    width = max(len(row[0]) for row in [head, *rows]) + 1
    lines = []
    for name, *others in [head, *rows]:
        cells = [f"{name},".ljust(width), *(f"{cell},".ljust(_COLUMN) for cell in others[:-1])]
        lines.append("".join([*cells, others[-1].ljust(_COLUMN)]))
    return lines


def files(
    samples: _core.Samples, kind: QAicProfilingTypeEnum, prefix: str
) -> Iterator[tuple[str, str | bytes]]:
    """Return names and contents of the files of a profile; programs without samples have none."""
    times = samples.times()
    prefix = prefix or PREFIX
    for number, facts in enumerate(samples.programs):
        if kind is RAW_DEVICE_STATS:
            for index in (times["program"] == number).nonzero()[0]:
                content = samples.stats(index)
                if content is not None:
                    activation, inference = times["activation"][index], times["inference"][index]
                    name = buffer_name(number, activation, inference, facts["network"], prefix=prefix)
                    yield name, content
            continue
        of_it = samples.of_program(number)
        if not len(of_it):
            continue
        if kind is TRACE:
            yield trace_name(number, prefix=prefix), of_it.host_trace()
        elif kind is DEV_KPI:
            yield metrics_name(number, prefix=prefix), device_report(of_it, number)
        else:
            yield latency_name(number, prefix=prefix), of_it.latency_report(number, always=True) or ""


def write(folder: Path, name: str, content: str | bytes) -> None:
    """Write a file atomically. Blocking. Raises OSError if the folder is not writable."""
    replace_bytes(folder / name, content.encode() if isinstance(content, str) else content)
