"""The option table: every option that has its effect in this version, one field each.

These classes are both the table and the typed result of `qaic.options.resolve`. Names and defaults are those
of compile-options §1; names that the documents know and this version does not are in `unsupported`.
"""

# ruff: noqa: RUF009  # `option` makes an immutable row, as `dataclasses.field` does

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from qaic.options.codecs import Bool, Enum, FilePath, Int, Str
from qaic.options.partitions import PartitionConfig, Partitions
from qaic.options.spec import Effect, Flag, FlagForm, OptionSpec, Row, Stage, option
from qaic.options.specializations import Specialization, Specializations
from qaic.options.structures import DeviceIds, ModelInput, ModelInputs, SymbolMap

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: The runtime keeps these numbers in 32 bits.
_LARGEST = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """Options that say what to do with the others."""

    model_path: Path | None = option(
        FilePath("model"),
        default=None,
        summary="Model to compile (`.onnx`) or container to load (`.bin`).",
        effect=Effect.BEHAVIOUR,
        aliases=("model",),
        flag=Flag("m", FlagForm.VALUE),
    )
    options_path: Path | None = option(
        FilePath("YAML file"),
        default=None,
        summary="YAML file with options; keyword arguments win over it.",
        effect=Effect.BEHAVIOUR,
    )
    backend: str = option(
        Enum("aic", "qaic"),
        default="aic",
        summary="Backend; both names mean the same.",
        effect=Effect.VALIDATED,
    )
    compile: bool = option(
        Bool(),
        default=True,
        summary="Compile the model; false requires a compiled container.",
        effect=Effect.BEHAVIOUR,
    )
    strict_options: bool = option(
        Bool(),
        default=False,
        summary="Unknown and unsupported keys of a YAML file are errors, not warnings.",
        effect=Effect.BEHAVIOUR,
        flag=Flag("strict-options", FlagForm.SWITCH),
        ours=True,
    )


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """Options of the compiler. Ignored when the model is a compiled container."""

    output_dir: Path | None = option(
        FilePath("directory"),
        default=None,
        summary="Directory that receives `programqpc.bin`; unset: the container stays in the compile cache.",
        effect=Effect.FILE,
        aliases=("compiler_compilationoutputdir",),
        flag=Flag("aic-binary-dir", FlagForm.VALUE),
    )
    model_inputs: tuple[ModelInput, ...] = option(
        ModelInputs(),
        default=(),
        summary="Element type and shape of graph inputs; gives sizes to symbolic dimensions.",
        effect=Effect.BEHAVIOUR,
        aliases=("model_inputs_list",),
        flag=Flag("model-input", FlagForm.REPEAT),
        in_container=True,
    )
    onnx_define_symbol: Mapping[str, int] = option(
        SymbolMap(),
        default={},
        summary="Sizes of symbolic dimensions by their names in the model.",
        effect=Effect.BEHAVIOUR,
        flag=Flag("onnx-define-symbol", FlagForm.REPEAT),
        in_container=True,
    )
    network_specialization_config: tuple[Specialization, ...] = option(
        Specializations(),
        default=(),
        summary="Sets of sizes for the symbolic dimensions in one container; the shapes of a run choose.",
        effect=Effect.BEHAVIOUR,
        flag=Flag("network-specialization-config", FlagForm.VALUE),
        in_container=True,
    )
    retained_state: bool = option(
        Bool(),
        default=False,
        summary="Output `X_RetainedState` stays on the device and is input `X` of the next inference.",
        effect=Effect.BEHAVIOUR,
        aliases=("compiler_retained_state",),
        flag=Flag("retained-state", FlagForm.SWITCH),
        in_container=True,
    )
    mdp_load_partition_config: PartitionConfig | None = option(
        Partitions(),
        default=None,
        summary="Devices that share the program; the CPU device asks for as many and runs it in one.",
        effect=Effect.VALIDATED,
        aliases=("compiler_mdp_load_partition_config",),
        flag=Flag("mdp-load-partition-config", FlagForm.VALUE),
        in_container=True,
    )
    convert_to_fp16: bool = option(
        Bool(),
        default=False,
        summary="Compute floating point with the rounding of fp16, and keep weights as fp16.",
        effect=Effect.BEHAVIOUR,
        aliases=("compiler_convert_to_fp16",),
        flag=Flag("convert-to-fp16", FlagForm.SWITCH),
        in_container=True,
    )
    clip_fp16_constants: bool = option(
        Bool(),
        default=False,
        summary="Clip constants beyond the range of fp16 to its limits; otherwise they become infinite.",
        effect=Effect.BEHAVIOUR,
        flag=Flag("clip-fp16-constants", FlagForm.SWITCH),
        in_container=True,
        ours=True,
    )
    aic_num_cores: int = option(
        Int(ge=1, le=16),
        default=1,
        summary="NSP cores of one activation; on the CPU device the upper bound of its threads.",
        effect=Effect.TIMING,
        aliases=("num_of_cores", "compiler_num_of_cores"),
        flag=Flag("aic-num-cores", FlagForm.VALUE),
        in_container=True,
    )
    combine_inputs: bool = option(
        Bool(),
        default=True,
        summary="All inputs share one DMA buffer; false gives each its own.",
        effect=Effect.BEHAVIOUR,
        aliases=("compiler_combine_inputs",),
        flag=Flag("combine-inputs", FlagForm.SWITCH),
        in_container=True,
    )
    combine_outputs: bool = option(
        Bool(),
        default=True,
        summary="All outputs share one DMA buffer; false gives each its own.",
        effect=Effect.BEHAVIOUR,
        aliases=("compiler_combine_outputs",),
        flag=Flag("combine-outputs", FlagForm.SWITCH),
        in_container=True,
    )
    compile_only: bool = option(
        Bool(),
        default=False,
        summary="Changes nothing: option files carry it, and neither a session nor `qaic-compile` needs it.",
        effect=Effect.VALIDATED,
        flag=Flag("compile-only", FlagForm.SWITCH),
    )


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions:
    """Options of loading and running."""

    dev_id: int | tuple[int, ...] = option(
        DeviceIds(le=_LARGEST),
        default=0,
        summary="Device to run on; several for a program that they execute together.",
        effect=Effect.BEHAVIOUR,
        aliases=("device_ids", "runtime_device_ids", "runtime_device_id"),
        flag=Flag("device-id", FlagForm.VALUE),
        updatable=True,
    )
    num_activations: int = option(
        Int(ge=1, le=_LARGEST),
        default=1,
        summary="Instances of the program that run side by side on the device.",
        effect=Effect.TIMING,
        aliases=("num_activation", "runtime_num_activations", "aic_num_of_activations"),
        updatable=True,
    )
    set_size: int = option(
        Int(ge=1, le=_LARGEST),
        default=10,
        summary="Inferences in flight per activation.",
        effect=Effect.TIMING,
        updatable=True,
    )
    submit_timeout: int = option(
        Int(ge=0, le=_LARGEST, unit="seconds"),
        default=0,
        summary="Limit of one wait for completion, in seconds; 0 leaves it to the device.",
        effect=Effect.TIMING,
        aliases=("runtime_submit_timeout",),
        updatable=True,
    )
    submit_num_retries: int = option(
        Int(ge=0, le=_LARGEST),
        default=5,
        summary="Further waits after a wait has timed out.",
        effect=Effect.TIMING,
        aliases=("submit_retry_count", "runtime_submit_num_retries"),
        updatable=True,
    )
    threads_per_queue: int = option(
        Int(ge=1, le=_LARGEST),
        default=4,
        summary="Host threads per activation that convert inputs and outputs and feed the device.",
        effect=Effect.TIMING,
        aliases=("runtime_threads_per_queue",),
        updatable=True,
    )
    oversubscription_name: str | None = option(
        Str(),
        default=None,
        summary="Programs of one device with the same name share cores: those of the largest are enough.",
        effect=Effect.BEHAVIOUR,
        updatable=True,
    )
    enable_metrics: bool = option(
        Bool(),
        default=False,
        summary="Record the latency of every run. Not together with `enable_profiling`.",
        effect=Effect.BEHAVIOUR,
    )
    enable_profiling: bool = option(
        Bool(),
        default=False,
        summary="Record latency and a Python profile of every run. Not together with `enable_metrics`.",
        effect=Effect.BEHAVIOUR,
    )

    def backend_options(self) -> dict[str, object]:
        """Return the values that `update` may change, by canonical name (python-api §A.2.4)."""
        return {spec.name: getattr(self, spec.name) for spec in specs_of(RuntimeOptions) if spec.updatable}

    def update(self, **changes: object) -> RuntimeOptions:
        """Return a copy with some values changed.

        Parameters
        ----------
        **changes
            Any spelling of the names that `backend_options` returns. A value of None changes nothing.

        Raises
        ------
        qaic.errors.OptionError
            A name is unknown or cannot be changed after construction, or a value is wrong; nothing is
            changed.
        """
        # The table is built from this module, so it cannot be imported at the top of it.
        from qaic.options.resolution import parse_updates

        # The names are fields and the values come from their codecs; a checker cannot see through the table.
        return replace(self, **parse_updates(changes))  # type: ignore[arg-type]


def specs_of(model: type[SessionOptions | CompileOptions | RuntimeOptions]) -> tuple[OptionSpec, ...]:
    """Return the rows that are declared in one of the classes above, in their order."""
    rows: list[OptionSpec] = []
    for declared in fields(model):
        row = declared.metadata["option"]
        assert isinstance(row, Row)  # noqa: S101  # every field is declared with `option`
        rows.append(row.spec(declared.name, _STAGES[model]))
    return tuple(rows)


_STAGES: dict[type, Stage] = {
    SessionOptions: Stage.SESSION,
    CompileOptions: Stage.COMPILE,
    RuntimeOptions: Stage.RUNTIME,
}
