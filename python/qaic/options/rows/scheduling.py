"""Options about cores, memory, scheduling and partitioning.

Most of them steer hardware that the CPU device has not: they are checked and recorded.
"""

# ruff: noqa: RUF009  # `option` makes an immutable row, as `dataclasses.field` does

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from qaic.options.codecs.enumerations import MostCores
from qaic.options.codecs.scalars import Bool, FilePath, Float, Int, ListOf
from qaic.options.files.parsed_file import FileContent, InputFileContent
from qaic.options.files.partitions import PartitionConfig, Partitions
from qaic.options.spec import AicField, Documented, Effect, Flag, JsonForm, option, switch

_LARGEST = 2**31 - 1


# Only the class that is composed of the sections is made: methods of its bases would be made for nothing.
@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SchedulingOptions:
    """Options about cores, memory, scheduling and partitioning."""

    SECTION: ClassVar = "Cores, memory, scheduling, partitioning"

    aic_num_cores: int = option(
        Int(ge=1, le=16),
        default=1,
        summary="NSP cores of one activation; on the CPU device, the largest number of threads.",
        effect=Effect.TIMING,
        aic=AicField("num_of_cores", 1, "compiler_num_of_cores"),
        in_container=True,
    )
    mos: tuple[int, ...] = option(
        MostCores(),
        default=(),
        summary="Effort to save on-chip memory by splitting output channels, one number per cluster.",
        effect=Effect.RECORDED,
        aic=AicField("max_out_channel_split", "1 2 0", "compiler_max_out_channel_split", JsonForm.SPACED),
        in_container=True,
    )
    ols: int | None = option(
        Int(ge=1, le=_LARGEST),
        default=None,
        summary="Factor by which operations are split to run in parallel.",
        effect=Effect.RECORDED,
        aic=AicField("overlap_split_factor", 2, "compiler_overlap_split_factor"),
        in_container=True,
    )
    ols_config: InputFileContent | None = option(
        FileContent("file"),
        default=None,
        summary="File with settings of `ols` for the compiler of the card; its content is not read.",
        effect=Effect.RECORDED,
        flag=Flag(inferred=True),
        documented=Documented.CLI,
        in_container=True,
    )
    mdts_mos: int | None = option(
        Int(ge=1, le=_LARGEST),
        default=None,
        summary="The effort of `mos` for devices that share the work of each node.",
        effect=Effect.RECORDED,
        documented=Documented.CLI,
        in_container=True,
    )
    allocator_dealloc_delay: int | None = option(
        Int(ge=0, le=10),
        default=None,
        summary="Delay before an unused buffer is released.",
        effect=Effect.RECORDED,
        aliases=("allocator_dealloac_delay",),
        aic=AicField("buffer_dealloc_delay", 2, "compiler_buffer_dealloc_delay"),
        in_container=True,
    )
    size_split_granularity: int | None = option(
        Int(ge=512, le=2048, unit="KiB"),
        default=None,
        summary="Largest tile of a split operation.",
        effect=Effect.RECORDED,
        aic=AicField("size_split_granularity", 1024, "compiler_size_split_granularity"),
        in_container=True,
    )
    vtcm_working_set_limit_ratio: float | None = option(
        Float(ge=0, le=1),
        default=None,
        summary="Share of the fast memory that one instruction may use.",
        effect=Effect.RECORDED,
        aic=AicField("vtcm_working_set_limit_ratio", 1.0, "compiler_VTCM_working_set_limit_ratio"),
        in_container=True,
    )
    force_vtcm_spill: bool | None = option(
        Bool(),
        default=None,
        summary="Move buffers from the fast memory to DDR.",
        effect=Effect.RECORDED,
        flag=None,
        documented=Documented.CONFIG,
        aic=AicField("force_vtcm_spill", default=True, json_key="compiler_force_VTCM_spill"),
        in_container=True,
    )
    aic_enable_depth_first: bool = switch(
        "Schedule depth first.",
        Effect.RECORDED,
        aic=AicField("enable_depth_first", default=True, json_key="compiler_enable_depth_first"),
        in_container=True,
    )
    aic_depth_first_mem: int | None = option(
        Int(ge=8, le=32),
        default=None,
        summary="Memory for scheduling depth first.",
        effect=Effect.RECORDED,
        aliases=("compiler_depth_first_mem",),
        in_container=True,
    )
    sdp_cluster_sizes: tuple[int, ...] = option(
        ListOf(Int(ge=1, le=16), spaces=True, most=4),
        default=(),
        summary="Cores of the clusters that one device is divided into.",
        effect=Effect.RECORDED,
        aic=AicField("cluster_sizes", "1 2 0", "compiler_cluster_sizes", JsonForm.SPACED),
        in_container=True,
    )
    multicast_weights: bool = switch(
        "Load shared weights once for all cores.",
        Effect.RECORDED,
        aic=AicField("do_ddr_to_multicast", default=True, json_key="compiler_do_DDR_to_multicast"),
        in_container=True,
    )
    use_producer_dma: bool | None = option(
        Bool(),
        default=None,
        summary="Start a transfer in the thread that produces the data.",
        effect=Effect.RECORDED,
        aic=AicField(
            "user_dma_producer_dma_enabled", default=True, json_key="compiler_userDMAProducerDMAEnabled"
        ),
        in_container=True,
    )
    combine_inputs: bool = switch(
        "Put all inputs into one DMA buffer; false: one buffer for each.",
        Effect.BEHAVIOR,
        default=True,
        aic=AicField("combine_inputs", default=True, json_key="compiler_combine_inputs"),
        in_container=True,
    )
    combine_outputs: bool = switch(
        "Put all outputs into one DMA buffer; false: one buffer for each.",
        Effect.BEHAVIOR,
        default=True,
        aic=AicField("combine_outputs", default=True, json_key="compiler_combine_outputs"),
        in_container=True,
    )
    direct_api: bool | None = option(
        Bool(),
        default=None,
        summary="Use the shared-memory interface of the platform.",
        effect=Effect.RECORDED,
        flag=None,
        documented=Documented.CONFIG,
        aic=AicField("direct_api", default=True, json_key="compiler_directApi"),
        in_container=True,
    )
    compile_threads: int | None = option(
        Int(ge=1, le=_LARGEST),
        default=None,
        summary="Threads of the compiler; the container does not depend on it.",
        effect=Effect.TIMING,
        flag=Flag(inferred=True),
        aic=AicField("compile_threads", 2, "compiler_compileThreads"),
    )
    user_tiled: bool = switch(
        "The model is already cut into tiles.", Effect.RECORDED, documented=Documented.CLI, in_container=True
    )
    mdp_load_partition_config: PartitionConfig | None = option(
        Partitions(),
        default=None,
        summary="Partition of the program over devices; the CPU device runs it as one.",
        effect=Effect.VALIDATED,
        aic=AicField("mdp_load_partition_config", "mdp_config.json", "compiler_mdp_load_partition_config"),
        in_container=True,
    )
    mdp_dump_partition_config: Path | None = option(
        FilePath("JSON file to write"),
        default=None,
        summary="Write a template of the file for `mdp_load_partition_config`.",
        effect=Effect.FILE,
        aic=AicField(
            "mdp_dump_partition_config", "mdp_pipeline_template.json", "compiler_mdp_dump_partition_config"
        ),
    )
