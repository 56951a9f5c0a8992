"""Options of sessions: the handling of other options, and loading and running."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from qaic.options.codecs.scalars import INT32_MAX, Enum, FilePath, Int, Str
from qaic.options.codecs.structures import DeviceIds
from qaic.options.spec import AicField, Effect, Flag, JsonForm, option, switch


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """Options about the handling of other options."""

    SECTION: ClassVar = "Session"

    model_path: Path | None = option(
        FilePath("model"),
        None,
        "Model to compile (`.onnx`). A Session also loads a container (`.bin`).",
        flag=Flag("m", others=("model",)),
    )
    options_path: Path | None = option(
        FilePath("YAML file"), None, "YAML file with options; keyword arguments take precedence.", flag=None
    )
    backend: str = option(
        Enum("aic", "qaic"), "aic", "Backend; both values are equivalent.", Effect.VALIDATED, flag=None
    )
    compile: bool = switch("Compile the model; false requires a compiled container.", default=True, flag=None)
    strict_options: bool = switch(
        "Refuse a YAML file with unknown keys or keys for tools only; otherwise, they cause a warning.",
        ours=True,
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RuntimeRows:
    """Options of loading and running."""

    SECTION: ClassVar = "Loading and running"

    dev_id: int | tuple[int, ...] = option(
        DeviceIds(le=INT32_MAX),
        0,
        "Device, or several devices that run one program together.",
        aliases=("runtime_device_id",),
        flag=Flag("device-id"),
        aic=AicField((), "device_ids", form=JsonForm.IDS),
        updatable=True,
    )
    num_activations: int = option(
        Int(ge=1, le=INT32_MAX),
        1,
        "Number of instances of the program on the device.",
        Effect.TIMING,
        aliases=("num_activation", "aic_num_of_activations"),
        aic=AicField(1),
        updatable=True,
    )
    set_size: int = option(
        Int(ge=1, le=INT32_MAX), 10, "Inferences in flight per activation.", Effect.TIMING, updatable=True
    )
    submit_timeout: int = option(
        Int(ge=0, le=INT32_MAX, unit="seconds"),
        0,
        "Time limit of one wait for completion, in seconds; 0 selects the limit of the device.",
        Effect.TIMING,
        aic=AicField(0),
        updatable=True,
    )
    submit_num_retries: int = option(
        Int(ge=0, le=INT32_MAX),
        5,
        "Number of further waits after a timeout.",
        Effect.TIMING,
        aliases=("submit_retry_count",),
        aic=AicField(5),
        updatable=True,
    )
    threads_per_queue: int = option(
        Int(ge=1, le=INT32_MAX),
        4,
        "Host threads per activation that convert and transfer inputs and outputs.",
        Effect.TIMING,
        aic=AicField(4),
        updatable=True,
    )
    oversubscription_name: str | None = option(
        Str(), None, "Name of a group of programs on one device that share cores.", updatable=True
    )
    enable_metrics: bool = switch("Record the latency of every run. Excludes `enable_profiling`.")
    enable_profiling: bool = switch(
        "Record latency and a Python profile of every run. Excludes `enable_metrics`."
    )
    allow_hw_mismatch: bool = switch(
        "Load a program that was compiled for another hardware family.", ours=True
    )
    process_lock: str | None = option(
        Str(),
        None,
        "Accepted in stored configurations; no effect.",
        Effect.RECORDED,
        aliases=("runtime_process_lock",),
    )
