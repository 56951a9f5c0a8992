"""Options about statistics, checks and messages."""

# `option` makes an immutable row, as `dataclasses.field` does

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qaic.options.codecs.enumerations import HexCodes
from qaic.options.codecs.scalars import Bool, Enum, Int
from qaic.options.spec import AicField, Documented, Effect, Flag, FlagForm, JsonForm, option

_LARGEST = 2**31 - 1


# Only the class that is composed of the sections is made: methods of its bases would be made for nothing.
@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DiagnosticOptions:
    """Options about statistics, checks and messages."""

    SECTION: ClassVar = "Diagnostics and statistics"

    stats_level: int = option(
        Int(ge=0, le=_LARGEST),
        default=40,
        summary="What is measured: 40 whole inferences, 50 waits for buffers, 70 single nodes; 0 nothing.",
        effect=Effect.DIAGNOSTIC,
        flag=Flag("stats-level", FlagForm.VALUE),
        documented=Documented.CLI,
        aic=AicField("stat_level", 10, "compiler_stat_level", JsonForm.INT),
        in_container=True,
    )
    stats_batchsize: int = option(
        Int(ge=1, le=_LARGEST),
        default=1,
        summary="Samples in one inference: reported rates are counted in them.",
        effect=Effect.DIAGNOSTIC,
        flag=Flag("stats-batchsize", FlagForm.VALUE),
        aic=AicField("stats_batch_size", 2, "compiler_stats_batch_size", JsonForm.INT),
        in_container=True,
    )
    ddr_stats: bool = option(
        Bool(),
        default=False,
        summary="Measure the traffic of each core with DDR.",
        effect=Effect.RECORDED,
        flag=Flag("ddr-stats", FlagForm.SWITCH),
        aic=AicField("print_ddr_stats", default=True, json_key="compiler_printDDRStats", form=JsonForm.BOOL),
        in_container=True,
    )
    aic_pmu_recipe: str | None = option(
        Enum("AxiRd", "AxiWr", "AxiRdWr", "KernelUtil", "HmxMacs"),
        default=None,
        summary="Group of hardware events to count.",
        effect=Effect.RECORDED,
        flag=Flag("aic-pmu-recipe", FlagForm.VALUE),
        aic=AicField(
            "pmu_recipe_opt",
            "KernelUtil",
            "compiler_PMU_recipe_opt",
            JsonForm.TEXT,
            ("AxiRd", "AxiWr", "AxiRdWr", "KernelUtil"),
        ),
        in_container=True,
    )
    aic_pmu_events: tuple[int, ...] = option(
        HexCodes(most=8),
        default=(),
        summary="Hardware events to count, by their hexadecimal codes.",
        effect=Effect.RECORDED,
        flag=Flag("aic-pmu-events", FlagForm.VALUE),
        aic=AicField("pmu_events", "1 2 0", "compiler_PMU_events", JsonForm.SPACED),
        in_container=True,
    )
    aic_perf_warnings: bool = option(
        Bool(),
        default=False,
        summary="Report what makes the program slower than it could be.",
        effect=Effect.DIAGNOSTIC,
        flag=Flag("aic-perf-warnings", FlagForm.SWITCH),
        aic=AicField("perf_warnings", default=True, json_key="compiler_perfWarnings", form=JsonForm.BOOL),
    )
    aic_perf_metrics: bool = option(
        Bool(),
        default=False,
        summary="Report parameters, multiplications, and bytes of weights and activations.",
        effect=Effect.DIAGNOSTIC,
        flag=Flag("aic-perf-metrics", FlagForm.SWITCH),
        aic=AicField(
            "print_perf_metrics", default=True, json_key="compiler_printPerfMetrics", form=JsonForm.BOOL
        ),
    )
    time_passes: bool = option(
        Bool(),
        default=False,
        summary="Report how long each pass of the compiler took.",
        effect=Effect.DIAGNOSTIC,
        flag=Flag("time-passes", FlagForm.SWITCH),
        aic=AicField("time_passes", default=True, json_key="compiler_time_passes", form=JsonForm.BOOL),
    )
    enable_debug: bool = option(
        Bool(),
        default=False,
        summary="Log details of the compilation and keep the graph after each pass.",
        effect=Effect.DIAGNOSTIC,
        flag=Flag("enable-debug", FlagForm.SWITCH, inferred=True),
        aic=AicField("enable_debug", default=True, json_key="compiler_enableDebug", form=JsonForm.BOOL),
    )
    io_crc: bool = option(
        Bool(),
        default=False,
        summary="Check every input and output buffer with a CRC on its way.",
        effect=Effect.BEHAVIOR,
        flag=Flag("io-crc", FlagForm.SWITCH, inferred=True),
        aic=AicField("gen_crc", default=True, json_key="compiler_genCRC", form=JsonForm.BOOL),
        in_container=True,
    )
    io_crc_stride: int | None = option(
        Int(ge=1, le=_LARGEST, unit="bytes"),
        default=None,
        summary="Length of the sections that have a CRC of their own; unset: one for the buffer.",
        effect=Effect.BEHAVIOR,
        flag=Flag("io-crc-stride", FlagForm.VALUE, inferred=True),
        aic=AicField("crc_stride", 256, "compiler_crc_stride", JsonForm.INT),
        in_container=True,
    )
    verbose: int = option(
        Int(ge=0, le=3),
        default=0,
        summary="How much the tools report.",
        effect=Effect.DIAGNOSTIC,
        flag=Flag("v", FlagForm.COUNT),
        documented=Documented.CLI,
    )
