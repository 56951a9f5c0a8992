"""Steps of ``qaic-runner`` after its command line is parsed: open, place, load, run, report."""

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from qaic import _core, rt
from qaic.cli.console import SUCCESS, print_line, print_message
from qaic.cli.runner.command_line import RunRequest
from qaic.cli.runner.latencies import (
    Latencies,
    RunProgress,
    final_line,
    latency_reporter,
    rate_reporter,
    write_json,
)
from qaic.cli.runner.loop import InputMemory, Loop
from qaic.cli.runner.network import Network, Request
from qaic.cli.runner.outputs import Comparer, Tolerance, Writer, require_plain_transfers, written_range
from qaic.cli.runner.profiling import Recording, checked_folder, device_metrics, metric_lines, statistics_of
from qaic.cli.runner.sources import requests_of
from qaic.device_list import device_ids
from qaic.errors import (
    DeviceBusyError,
    DeviceError,
    DeviceNotFoundError,
    InferenceError,
    InputError,
    OptionError,
    QaicError,
)
from qaic.model_path import missing_file
from qaic.options.rows.runner import COUNTED, RunnerOptions
from qaic.support.program_names import QPC_FILE_NAME
from qaic.support.text import counted

_LOG_LEVELS = (rt.QLogLevel.QL_ERROR, rt.QLogLevel.QL_WARN, rt.QLogLevel.QL_INFO, rt.QLogLevel.QL_DEBUG)
_MEGABYTE = 2**20
#: default bytes of input data in memory
_BATCH_MEGABYTES = 1024
#: default period of reports
_PERIOD_MS = 1000


class _Plan(NamedTuple):
    """Checked settings of a run, before it uses a device."""

    qpc: rt.Qpc
    network: Network
    requests: list[Request]
    writer: Writer | None
    comparer: Comparer | None
    #: descriptor of the device's buffers, if the program has any
    statistics: _core.StatsDescriptor | None
    #: folder of profiles, if any are recorded
    profiles: Path | None
    #: number of inferences; None if time limits the run
    iterations: int | None


def run(request: RunRequest) -> int:
    """Run the program; returns the exit code. Raises QaicError if the program cannot run to its end."""
    options, named = request.options, list(request.devices)
    _check_devices(named)
    context = rt.Context(rt.QIDList(named))
    level = options.verbose
    context.setLogLevel(_LOG_LEVELS[level] if level < len(_LOG_LEVELS) else _LOG_LEVELS[0])
    plan = _plan(request)
    ids = named if request.is_device_map else _chosen(context, plan.qpc, named)
    if not named:
        _check_devices(ids)
    if options.verbose:
        print_line(f"Device: {':'.join(map(str, ids))}")
        print_line(f"Program: {request.program}")
    return _run_plan(plan, context, ids, request)


def _plan(request: RunRequest) -> _Plan:
    options = request.options
    with _specific_errors():
        qpc = rt.Qpc(_container(request.program))
    if options.pre_post_processing == "off":
        require_plain_transfers(request.program)
    for text in request.unused:
        print_message("warning", text)
    network = Network.of(qpc)
    requests = requests_of(options, request.program, network)
    count = request.num_iter or (len(requests) if options.time is None else None)
    if count is not None and options.num_iter is None:
        # Without a given number, the run has as many inferences as are written and recorded.
        count = max(count, *_wanted(request))
    _check_range(request, count)
    writer = Writer(request, network) if request.writes or options.dump_input_buffers else None
    has_outputs = options.output_file or any(part.paths for request in requests for part in request.outputs)
    if options.compare_outputs and not has_outputs:
        if options.aic_batch_json_input is None:
            raise OptionError(
                "-c compares with the output files of --aic-batch-json-input, which is not given",
                code="runner.options",
                hints=("-o FILE compares with the output in FILE",),
            )
        print_message("note", "-c: the batch file lists no output file to compare with")
    compares = bool(options.output_file) or options.compare_outputs
    comparer = Comparer(network, options.output_file, Tolerance.of(options)) if compares else None
    statistics = statistics_of(request.program)
    profiles = checked_folder(request.profiling, statistics) if request.profiling else None
    return _Plan(qpc, network, requests, writer, comparer, statistics, profiles, count)


@contextmanager
def _specific_errors() -> Iterator[None]:
    """Raise the cause of a failed construction, which is more specific, and has its own exit code."""
    try:
        yield
    except (rt.ExceptionInit, rt.ExceptionNullPtr) as error:
        if isinstance(error.__cause__, QaicError | OSError):
            raise error.__cause__ from None
        raise


def _wanted(request: RunRequest) -> tuple[int, int]:
    """Return the number of inferences that writing and recording need."""
    first, samples = written_range(request.options)
    written = first + samples if request.writes or request.options.dump_input_buffers else 0
    profiling = request.profiling
    is_counted = profiling is not None and bool(set(profiling.types) & set(COUNTED))
    return written, profiling.first + 1 if profiling is not None and is_counted else 0


def _check_range(request: RunRequest, count: int | None) -> None:
    first, samples = written_range(request.options)
    if (
        (request.writes or request.options.dump_input_buffers)
        and count is not None
        and first + samples > count
    ):
        raise OptionError(
            f"--write-output-start-iter {first} and --write-output-num-samples {samples} end at inference "
            f"{first + samples}, but the run ends after {count}",
            code="runner.write_range",
        )


def _container(folder: Path) -> str:
    if not folder.exists():
        raise missing_file(folder)
    if folder.suffix.lower() == ".onnx" and folder.is_file():
        raise InputError(
            f"{folder} is a model; a compiled container is expected",
            code="runner.model",
            hints=(f"`qaic-compile {shlex.quote(f'-m={folder}')} -aic-binary-dir=qpc` compiles it",),
        )
    if folder.is_dir() and not (folder / QPC_FILE_NAME).exists():
        raise FileNotFoundError(2, "No such file or directory", str(folder / QPC_FILE_NAME))
    return str(folder)


def _check_devices(ids: list[int]) -> None:
    known = device_ids(_core.Context())
    for number in ids:
        if number not in known:
            raise DeviceNotFoundError(
                f"Device {number} invalid; the ids are: {', '.join(map(str, known))}", code="device.not_found"
            )
        status, info = rt.Util().getDeviceInfo(number)
        if status != rt.QStatus.QS_SUCCESS or info.devStatus != rt.QDevStatus.QDS_READY:
            raise DeviceError(
                f"device {number} is not ready",
                code="device.unavailable",
                hints=(f"`qaic-util -q -d {number}` shows its state",),
            )


def _check_cores(qpc: rt.Qpc, ids: list[int], activations: int) -> None:
    """Refuse more activations than fit the cores of a device, before the runtime also logs the refusal."""
    cores = max(program.numCores for program in qpc.getInfo().program)
    for number in ids:
        total = rt.Util().getResourceInfo(number)[1].nspTotal
        if cores * activations > total > 0:
            raise DeviceBusyError(
                f"device {number} has {counted(total, 'core')}; -a {activations} needs {cores * activations}",
                code="runner.activations",
                hints=(f"the largest value is -a {total // cores}",),
            )


def _chosen(context: rt.Context, qpc: rt.Qpc, ids: list[int]) -> list[int]:
    """Return the devices for a program: as many of `ids` as it needs, or of all if `ids` is empty."""
    if len(ids) == 1:
        return ids
    chosen = _core.choose_devices(context, qpc)
    return [_pick(context, qpc, ids)] if ids and len(chosen) == 1 else chosen


def _pick(context: rt.Context, qpc: rt.Qpc, ids: list[int]) -> int:
    status, chosen = context.findDevice(qpc)
    if status != rt.QStatus.QS_SUCCESS:
        raise DeviceBusyError(
            f"none of the devices {', '.join(map(str, ids))} has the cores and memory for the program: "
            f"{status.name}",
            code="device.busy",
        )
    return int(chosen)


def _run_plan(plan: _Plan, context: rt.Context, ids: list[int], request: RunRequest) -> int:
    options = request.options
    _check_cores(plan.qpc, ids, options.aic_num_of_activations)
    with _specific_errors():
        inference_set = rt.InferenceSet(
            context,
            plan.qpc,
            ids[0] if len(ids) == 1 else None,
            options.in_flight_per_activation,
            options.aic_num_of_activations,
            _properties(options, ids),
        )
    memory = InputMemory(plan.requests, (options.aic_batch_max_memory or _BATCH_MEGABYTES) * _MEGABYTE)
    handles = options.in_flight_per_activation * options.aic_num_of_activations
    in_flight = min(handles, plan.iterations or handles)
    samples = [request.samples(plan.network) for request in plan.requests]
    progress = RunProgress()
    loop = Loop(
        inference_set=inference_set,
        requests=plan.requests,
        samples=samples,
        memory=memory,
        activations=options.aic_num_of_activations,
        most_in_flight=min(in_flight, memory.most_in_flight or in_flight),
        progress=progress,
        writer=plan.writer,
        comparer=plan.comparer,
    )
    if options.warm_up:
        loop.warm_up(options.warm_up)
    latencies = Latencies(inference_set) if options.stats or options.json is not None else None
    with ExitStack() as reporters:
        if options.live_reporting:
            reporters.enter_context(rate_reporter(progress, options.live_reporting_period or _PERIOD_MS))
        if options.stats and latencies is not None:
            reporters.enter_context(latency_reporter(latencies))
        metrics = reporters.enter_context(device_metrics(inference_set)) if plan.statistics else None
        recording = None
        if plan.profiles is not None and request.profiling is not None:
            recording = Recording(inference_set, request.profiling, plan.profiles, plan.statistics, progress)
            reporters.enter_context(recording)
        elapsed_ns = loop.run(plan.iterations, options.time)
    if recording is not None:
        recording.finish(progress.completed)
    print_line(" ---- Stats ----")
    microseconds, batch = elapsed_ns // 1000, max(samples[: plan.iterations])
    samples_per_s = _per_second(progress.samples, microseconds)
    # The vendor's form; scripts take the last line that contains "Inf/Sec".
    print_line(
        f"InferenceCnt {progress.completed} TotalDuration {microseconds}us BatchSize {batch} "
        f"Inf/Sec {samples_per_s:.3f}"
    )
    if latencies is not None:
        summary = latencies.summary()
        print_line(final_line(summary, in_flight))
        if options.json is not None:
            result = {
                "program": str(request.program),
                "devices": ids,
                "activations": options.aic_num_of_activations,
                "in_flight": in_flight,
                "batch_size": batch,
                "warm_up": options.warm_up,
                "inferences": progress.completed,
                "duration_us": microseconds,
                "inferences_per_second": _per_second(progress.completed, microseconds),
                "samples_per_second": samples_per_s,
                "latency": summary,
            }
            write_json(options.json, result)
            print_line(f"wrote {options.json}")
    for line in metric_lines(metrics) if metrics else ():
        print_line(line)
    differences = plan.comparer.report(progress.completed) if plan.comparer is not None else []
    if differences:
        fix = "--rtol X and --atol X allow relative and absolute errors of floating-point outputs"
        is_numeric = any("the largest error" in line for line in differences)
        raise InferenceError(
            "\n".join(differences), code="runner.different_output", hints=(fix,) if is_numeric else ()
        )
    if options.verbose and plan.comparer is not None:
        print_line(f"Outputs as expected: {counted(progress.completed, 'inference')}")
    if options.verbose:
        print_line(f"{counted(progress.completed, 'inference')} completed successfully")
    return SUCCESS


def _properties(options: RunnerOptions, ids: list[int]) -> rt.InferenceSetProperties:
    properties = rt.InferenceSetProperties()
    properties.programProperties.SubmitRetryTimeoutMs = options.submit_timeout
    properties.programProperties.SubmitNumRetries = options.submit_retry_count
    if len(ids) > 1:
        properties.programProperties.devMapping = ":".join(map(str, ids))
    properties.queueProperties.numThreadsPerQueue = options.aic_threads_per_queue
    return properties


def _per_second(count: int, microseconds: int) -> float:
    return count * 1e6 / max(1, microseconds)
