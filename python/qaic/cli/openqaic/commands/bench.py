"""``openqaic bench MODEL``: measures latency and throughput for numbers of concurrent inferences."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from qaic import Session, _core
from qaic.cli.console import SUCCESS, Parser, print_json, print_line, print_message
from qaic.cli.openqaic.arguments import (
    add_device,
    add_inputs,
    add_json,
    add_model,
    add_warm_up,
    count,
    device_options,
    pixels_of,
    positive,
    set_examples,
)
from qaic.cli.openqaic.commands.compile import Program
from qaic.cli.openqaic.compile_options import add_compile_options, next_command, next_view
from qaic.cli.openqaic.program import check_output_file, files_of, open_program
from qaic.cli.openqaic.tensor_files import naming_files, read_inputs
from qaic.cli.qpc.facts import facts
from qaic.cli.runner.latencies import summarize
from qaic.compiler.ir.graph_walk import all_graphs, op_types
from qaic.compiler.passes.legalize.legalize_exports import moved_captures
from qaic.errors import DeviceBusyError, OptionError, StateError
from qaic.qpc import Qpc
from qaic.support.atomic_io import replace_bytes
from qaic.support.status_line import status_line
from qaic.support.text import counted, duration, three_digits

_Feeds = dict[str, NDArray[Any]]

_FIGURES: Final = ("min", "mean", "p50", "p90", "p95", "p99", "max")
_MOST_STREAMS: Final = 1024
#: shortest measurement of a rate
_SHORTEST_S: Final = 0.1
#: a latency below this is shown in microseconds
_SHORT_US: Final = 100.0


def add_arguments(parser: Parser) -> None:
    add_model(parser)
    add_inputs(parser)
    parser.add_argument(
        "--streams",
        type=_streams,
        metavar="N,...",
        help="number of streams, each with its own cores (default: 1, 2, 4, ... processors; "
        "1 for a program with retained state)",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--seconds", type=positive, default=2.0, help="duration of each measurement (default: %(default)s)"
    )
    length.add_argument(
        "-n", "--num-iter", type=count, metavar="N", help="inferences per measurement, instead of a time"
    )
    parser.add_argument(
        "--rate",
        type=positive,
        metavar="R",
        help="start R inferences per second, evenly spaced (default: streams start the next immediately)",
    )
    add_warm_up(parser, 10)
    parser.add_argument(
        "--beside", choices=("onnxruntime",), help="also measure the model in this engine, in alternation"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE.json",
        type=Path,
        help="write JSON with the latency of every inference; `openqaic plot` draws it",
    )
    add_device(parser)
    add_json(parser)
    add_compile_options(parser)
    set_examples(
        parser,
        "openqaic bench model.onnx",
        "openqaic bench model.onnx --beside onnxruntime --streams 1,2",
        "openqaic bench program/programqpc.bin --seconds 10 -o bench.json",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure, and show a row for each number of streams."""
    check_output_file("-o", arguments.output, read=[arguments.model, *files_of(arguments.inputs)])
    if arguments.beside is not None and arguments.rate is not None:
        raise OptionError(
            "--rate and --beside exclude each other: streams of onnxruntime start inferences without a rate",
            code="bench.rate",
        )
    program = open_program(arguments)
    if arguments.beside is not None and program.model is None:
        raise OptionError(
            f"--beside {arguments.beside} needs the model, not {program.path}: give the .onnx file",
            code="bench.beside",
        )
    started = time.perf_counter()
    with Session(program.path, num_activations=1, set_size=1, **device_options(arguments)) as session:
        cores = session.qpc.program_info.num_cores
        has_state = bool((session.qpc.plan or {}).get("retained_state"))
        streams = arguments.streams or ([1] if has_state else _default_streams(cores))
        if has_state and max(streams) > 1:
            raise OptionError(
                f"--streams {max(streams)}: a program with retained state runs one stream",
                code="bench.streams",
                hints=("give --streams 1",),
            )
        inputs = session.model_input_shape_dict
        network = session.qpc.network_descriptor
        feeds = read_inputs(arguments.inputs, inputs, network, pixels_of(arguments))
        with naming_files(arguments.inputs, inputs), status_line(lambda: "loading"):
            session.setup()
            load_s = time.perf_counter() - started
            started = time.perf_counter()
            session.run(feeds)
            first_inference_s = time.perf_counter() - started
        other = None if arguments.beside is None else _onnxruntime(program.model, cores)
        if not arguments.json:
            print_line(
                f"loaded in {duration(1e6 * load_s)}, first inference {duration(1e6 * first_inference_s)}"
            )
        rows: list[dict[str, Any]] = []
        for row in _measured(session, other, feeds, streams, arguments):
            rows.append(row)
            if not arguments.json:
                _print_rows(rows)
    result = {
        "program": program.facts(),
        "cores": cores,
        "batch_size": session.qpc.program_info.batch_size,
        "warm_up": arguments.warm_up,
        "seconds": arguments.seconds if arguments.num_iter is None else None,
        "inferences": arguments.num_iter,
        "rate": arguments.rate,
        "load_s": load_s,
        "first_inference_s": first_inference_s,
        "measurements": rows,
    }
    if arguments.output is not None:
        replace_bytes(arguments.output, json.dumps(result).encode() + b"\n")
    if arguments.json:
        print_json(result)
        return SUCCESS
    print_line(
        _best(rows, arguments.rate)
        + (f"; wrote {shlex.quote(str(arguments.output))}" if arguments.output is not None else "")
    )
    if session.qpc.target == "cpu":
        print_line("times are those of this host, not of a card")
    print_line(f"next: {_next_step(program, arguments)}")
    return SUCCESS


def _best(rows: Sequence[dict[str, Any]], rate: float | None) -> str:
    """Return the sentence about the best row: the highest rate, or at a fixed rate the lowest p99.

    A short measurement has a median and its range instead of a rate.
    """
    rows = [row for row in rows if row["runtime"] == "openqaic"]
    if rate is not None:
        best = min(rows, key=lambda row: row["latency"].get("p99_us", math.inf))
        reached = three_digits(best["inferences_per_s"])
        p99 = duration(best["latency"]["p99_us"])
        return f"best: p99 {p99} (streams: {best['streams']}); {reached} of {rate:,g} inferences/s"
    best = max(rows, key=lambda row: row["inferences_per_s"])
    latency = best["latency"]
    if latency["count"] / best["inferences_per_s"] < _SHORTEST_S:
        p50, least, most = (duration(latency[f"{name}_us"]) for name in ("p50", "min", "max"))
        return f"median: {p50}, {least} to {most}; for a rate, use --seconds 2 without -n"
    return f"best: {three_digits(best['inferences_per_s'])} inferences/s (streams: {best['streams']})"


def _next_step(program: Program, arguments: argparse.Namespace) -> str:
    """Return a profile of the model; None for a container that does not measure operations."""
    if program.model is None and not (facts(qpc := Qpc(program.path))["stats"] or {}).get("operations"):
        return next_view(qpc, str(arguments.model))
    return next_command("profile", arguments, "-o", "page.html")


def _measured(
    session: Session,
    other: OnnxRuntimeSession | None,
    feeds: _Feeds,
    streams: Sequence[int],
    arguments: argparse.Namespace,
) -> Iterator[dict[str, Any]]:
    for number in streams:
        with status_line(lambda: f"measuring {counted(number, 'stream')}"):  # noqa: B023 (ends here)
            row = _of_openqaic(session, feeds, number, arguments)
        yield row
        if other is not None:
            with status_line(lambda: f"measuring onnxruntime, {counted(number, 'stream')}"):  # noqa: B023
                row = _of_onnxruntime(other, feeds, number, arguments)
            yield row


def _of_openqaic(
    session: Session, feeds: _Feeds, streams: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    session.update_backend_options(num_activations=streams)
    try:
        if arguments.warm_up:
            session.run_benchmark(num_inferences=arguments.warm_up, input_dict=feeds)
        session.setup()
    except DeviceBusyError as error:
        error.hints = ("lower --streams or aic_num_cores, or end another program on the device",)
        raise
    seconds, inferences = arguments.seconds, arguments.num_iter
    with session.profile(device=False) as profile:
        if arguments.rate is None:
            limit = {"inf_time": seconds} if inferences is None else {"num_inferences": inferences}
            completed, rate, *_ = session.run_benchmark(**limit, input_dict=feeds)
        else:
            requests = RequestRate(feeds, arguments.rate, seconds=seconds, count=inferences)
            began = time.perf_counter()
            completed = sum(1 for _ in session.map(requests))
            # The last of N requests is due after N - 1 periods.
            rate = completed / max(time.perf_counter() - began, completed / arguments.rate)
    latencies_s = profile.latencies_s if arguments.rate is None else requests.latencies_s(profile.samples)
    return {
        "runtime": "openqaic",
        "streams": streams,
        "inferences_per_s": rate,
        "latency": summarize(latencies_s * 1e6, completed - len(profile)),
        "stages_s": dict(profile.stages),
    }


def _of_onnxruntime(
    other: OnnxRuntimeSession, feeds: _Feeds, streams: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    for _ in range(arguments.warm_up):
        other.run(feeds)
    latencies_s, rate = other.measure(
        feeds, threads=streams, duration_s=arguments.seconds, inferences=arguments.num_iter
    )
    latency = summarize(latencies_s * 1e6)
    return {"runtime": "onnxruntime", "streams": streams, "inferences_per_s": rate, "latency": latency}


def _onnxruntime(model: Path | None, cores: int) -> OnnxRuntimeSession:
    assert model is not None  # noqa: S101  # the caller has looked
    session = OnnxRuntimeSession(model, threads_per_inference=cores)
    if session.left_out:
        print_message(
            "note",
            f"onnxruntime runs without {', '.join(session.left_out)}, because it would end the process if a "
            "body of control flow reads a value of a quantized graph",
        )
    return session


def _print_rows(rows: list[dict[str, Any]]) -> None:
    """Print the last row, preceded by the header if it is the first; all rows have the unit of the first."""
    unit, size_us = ("ms", 1e3) if rows[0]["latency"].get("p50_us", 0.0) >= _SHORT_US else ("us", 1.0)
    if len(rows) == 1:
        names = "".join(f" {name:>5}" for name in _FIGURES)
        print_line(f"{'latency, ' + unit:>{len(names) + 19}}")
        print_line(f"{'runtime':<11} {'streams':>7}{names}{'inf/s':>8}{'count':>8}")
    row = rows[-1]
    latency = row["latency"]
    texts = (three_digits(latency.get(f"{name}_us", math.nan) / size_us) for name in _FIGURES)
    # The first median determines the unit, but latencies on a busy host can be much longer.
    shown = "".join(f" {text if len(text) <= 5 else text.replace(',', ''):>5}" for text in texts)
    print_line(
        f"{row['runtime']:<11} {row['streams']:>7}{shown}"
        f"{three_digits(row['inferences_per_s']):>8}{latency['count']:>8}"
    )
    # The output is flushed, so that readers of a pipe get each row when it is measured.
    sys.stdout.flush()


def _streams(text: str) -> list[int]:
    numbers = [count(part) for part in text.split(",")]
    if max(numbers) > _MOST_STREAMS:
        raise argparse.ArgumentTypeError(f"found {max(numbers)} streams, expected at most {_MOST_STREAMS}")
    return numbers


def _default_streams(cores: int) -> list[int]:
    free = max((device["nsp_total"] for device in _core.Context().devices()), default=cores)
    most = max(1, min(len(os.sched_getaffinity(0)), free // max(cores, 1)))
    return [number for power in range(most.bit_length()) if (number := 1 << power) <= most]


T = TypeVar("T")


@dataclass
class RequestRate(Generic[T]):
    """Yields a value repeatedly, at a constant rate.

    A late value does not delay the times of later values, so the delay of a program that is too slow
    increases from request to request.
    """

    value: T
    #: Values per second.
    rate: float
    #: Time until the last value.
    seconds: float
    #: Number of values, instead of a time.
    count: int | None
    #: delay of each value, in seconds
    late_s: list[float] = field(init=False, default_factory=list)

    def __iter__(self) -> Iterator[T]:
        began = time.perf_counter()
        for number in itertools.count() if self.count is None else range(self.count):
            elapsed_s, due_s = time.perf_counter() - began, number / self.rate
            if self.count is None and number and max(elapsed_s, due_s) >= self.seconds:
                return
            late_s = elapsed_s - due_s
            if late_s < 0:
                time.sleep(-late_s)
            self.late_s.append(max(late_s, 0.0))
            yield self.value

    def latencies_s(self, samples: NDArray[np.void]) -> NDArray[np.float64]:
        """Return the seconds from the due time of each request to its end.

        `samples` are recorded inferences (`qaic.profile.Profile.samples`).
        """
        ordered = np.sort(samples, order="enqueued_ns")
        late_s = np.array(self.late_s[: len(ordered)])
        latencies_s: NDArray[np.float64] = (ordered["completed_ns"] - ordered["enqueued_ns"]) / 1e9 + late_s
        return latencies_s


_QDQ_PROPAGATION: Final = ("QDQPropagationTransformer",)


class OnnxRuntimeSession:
    """A session of onnxruntime's CPU provider.

    `path` is the model; `threads_per_inference` threads share one inference. Raises StateError if onnxruntime
    cannot be imported.
    """

    def __init__(self, path: Path, *, threads_per_inference: int = 1) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise StateError(
                f"onnxruntime cannot be imported for the comparison: {error}", code="beside.onnxruntime"
            ) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads_per_inference
        # Warnings of onnxruntime about the model would appear between the rows.
        options.log_severity_level = 3
        #: optimizers of the engine that are disabled, because the process would crash
        self.left_out = _QDQ_PROPAGATION if _ends_the_engine(path) else ()
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=list(self.left_out)
        )

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Run one inference."""
        result: list[NDArray[Any]] = self._session.run(None, feeds)
        return result

    def measure(
        self,
        feeds: Mapping[str, NDArray[Any]],
        *,
        threads: int,
        duration_s: float,
        inferences: int | None = None,
    ) -> tuple[NDArray[np.float64], float]:
        """Run inferences from several threads for some time, or ``inferences`` of them. Blocking.

        Each thread runs at least one inference if a time is given.

        Returns the seconds of each inference, and inferences per second.
        """
        started = time.perf_counter()
        until = started + (duration_s if inferences is None else math.inf)
        # Threads share the iterator, because `next` is one step of the interpreter.
        left = itertools.repeat(None) if inferences is None else iter(range(inferences))

        def loop() -> list[float]:
            latencies_s: list[float] = []
            for _ in left:
                if (begun := time.perf_counter()) >= until and latencies_s:
                    break
                self._session.run(None, feeds)
                latencies_s.append(time.perf_counter() - begun)
            return latencies_s

        with ThreadPoolExecutor(threads) as pool:
            futures = [pool.submit(loop) for _ in range(threads)]
            found = np.concatenate([future.result() for future in futures])
        return found, len(found) / (time.perf_counter() - started)


def _ends_the_engine(path: Path) -> bool:
    """Return True if the engine would crash because it moves dequantization to a captured value.

    The engine reports files that are not models.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, OSError):
        return False
    return "DequantizeLinear" in op_types(model) and any(map(moved_captures, all_graphs(model.graph)))
