"""Options about statistics, checks and messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qaic.options.codecs.enumerations import HexCodes
from qaic.options.codecs.scalars import INT32_MAX, Enum, Int
from qaic.options.spec import AicField, Effect, Flag, FlagForm, JsonForm, option, switch


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DiagnosticOptions:
    """Options about statistics, checks and messages."""

    SECTION: ClassVar = "Diagnostics and statistics"

    stats_level: int = option(
        Int(ge=0, le=INT32_MAX),
        40,
        "Device statistics: 0 none, 40 inferences, 50 also waits for buffers, 70 also operations.",
        Effect.DIAGNOSTIC,
        aic=AicField(10, "stat_level"),
    )
    stats_batchsize: int = option(
        Int(ge=1, le=INT32_MAX),
        1,
        "Number of samples in one inference, for reported rates.",
        Effect.DIAGNOSTIC,
        aic=AicField(2, "stats_batch_size"),
    )
    ddr_stats: bool = switch(
        "Measure the DDR traffic of each core.",
        Effect.RECORDED,
        aic=AicField(default=True, name="print_ddr_stats", json_key="compiler_printDDRStats"),
    )
    aic_pmu_recipe: str | None = option(
        Enum("AxiRd", "AxiWr", "AxiRdWr", "KernelUtil", "HmxMacs"),
        None,
        "Group of hardware events to count.",
        Effect.RECORDED,
        aic=AicField(
            "KernelUtil",
            "pmu_recipe_opt",
            json_key="compiler_PMU_recipe_opt",
            choices=("AxiRd", "AxiWr", "AxiRdWr", "KernelUtil"),
        ),
    )
    aic_pmu_events: tuple[int, ...] = option(
        HexCodes(most=8),
        (),
        "Hardware events to count, by their hexadecimal codes.",
        Effect.RECORDED,
        aic=AicField("1 2 0", json_key="compiler_PMU_events", form=JsonForm.SPACED),
    )
    aic_perf_warnings: bool = switch(
        "Report patterns that make the program slow.",
        Effect.DIAGNOSTIC,
        aic=AicField(default=True, json_key="compiler_perfWarnings"),
        in_container=False,
    )
    aic_perf_metrics: bool = switch(
        "Report parameters, multiplications, and bytes of weights and activations.",
        Effect.DIAGNOSTIC,
        aic=AicField(default=True, name="print_perf_metrics", json_key="compiler_printPerfMetrics"),
        in_container=False,
    )
    time_passes: bool = switch(
        "Report the time of each compiler pass, and why its rules did not apply to some nodes.",
        Effect.DIAGNOSTIC,
        aic=AicField(default=True),
        in_container=False,
    )
    enable_debug: bool = switch(
        "Log details of the compilation and keep the graph after each pass.",
        Effect.DIAGNOSTIC,
        aic=AicField(default=True, json_key="compiler_enableDebug"),
        in_container=False,
    )
    io_crc: bool = switch(
        "Verify every input and output buffer with a CRC.",
        aic=AicField(default=True, name="gen_crc", json_key="compiler_genCRC"),
    )
    io_crc_stride: int | None = option(
        Int(ge=1, le=INT32_MAX, unit="bytes"),
        None,
        "Length of the sections with a separate CRC; if unset, one CRC covers the buffer.",
        aic=AicField(256, "crc_stride"),
    )
    verbose: int = option(
        Int(ge=0, le=3),
        0,
        "Level of detail of messages.",
        Effect.DIAGNOSTIC,
        flag=Flag("v", FlagForm.COUNT),
        in_container=False,
    )
