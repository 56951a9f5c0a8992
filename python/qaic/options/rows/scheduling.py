"""Options about cores, memory, scheduling and partitioning.

Most of them control hardware that the CPU device does not have: they are checked and recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from qaic.options.codecs.enumerations import MostCores
from qaic.options.codecs.scalars import INT32_MAX, Bool, FilePath, Float, Int, ListOf
from qaic.options.files.parsed_file import FileContent, InputFileContent
from qaic.options.files.partitions import PartitionConfig, Partitions
from qaic.options.spec import AicField, Effect, Flag, JsonForm, option, switch


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SchedulingOptions:
    """Options about cores, memory, scheduling and partitioning."""

    SECTION: ClassVar = "Cores, memory, scheduling, partitioning"

    aic_num_cores: int = option(
        Int(ge=1, le=16),
        1,
        "Number of NSP cores of one activation; on the CPU device, the most threads it uses.",
        Effect.TIMING,
        aic=AicField(1, "num_of_cores"),
    )
    mos: tuple[int, ...] = option(
        MostCores(),
        (),
        "Effort to save on-chip memory by splitting output channels, one number per cluster.",
        Effect.RECORDED,
        aic=AicField("1 2 0", "max_out_channel_split", form=JsonForm.SPACED),
    )
    ols: int | None = option(
        Int(ge=1, le=INT32_MAX),
        None,
        "Factor by which operations are split to run in parallel.",
        Effect.RECORDED,
        aic=AicField(2, "overlap_split_factor"),
    )
    ols_config: InputFileContent | None = option(
        FileContent("file"),
        None,
        "File with settings of `ols` for the compiler of the card; its content is not read.",
        Effect.RECORDED,
    )
    mdts_mos: int | None = option(
        Int(ge=1, le=INT32_MAX),
        None,
        "As `mos`, for devices that share the work of each node.",
        Effect.RECORDED,
    )
    allocator_dealloc_delay: int | None = option(
        Int(ge=0, le=10),
        None,
        "Delay before an unused buffer is released.",
        Effect.RECORDED,
        aliases=("allocator_dealloac_delay",),
        aic=AicField(2, "buffer_dealloc_delay"),
    )
    size_split_granularity: int | None = option(
        Int(ge=512, le=2048, unit="KiB"),
        None,
        "Largest tile of a split operation.",
        Effect.RECORDED,
        aic=AicField(1024),
    )
    vtcm_working_set_limit_ratio: float | None = option(
        Float(ge=0, le=1),
        None,
        "Share of the fast memory that one instruction may use.",
        Effect.RECORDED,
        aic=AicField(1.0, json_key="compiler_VTCM_working_set_limit_ratio"),
    )
    force_vtcm_spill: bool | None = option(
        Bool(),
        None,
        "Move buffers from the fast memory to DDR.",
        Effect.RECORDED,
        flag=None,
        aic=AicField(default=True, json_key="compiler_force_VTCM_spill"),
    )
    aic_enable_depth_first: bool = switch(
        "Schedule operations depth first.", Effect.RECORDED, aic=AicField(default=True)
    )
    aic_depth_first_mem: int | None = option(
        Int(ge=8, le=32),
        None,
        "Memory for depth-first scheduling.",
        Effect.RECORDED,
        aliases=("compiler_depth_first_mem",),
    )
    sdp_cluster_sizes: tuple[int, ...] = option(
        ListOf(Int(ge=1, le=16), spaces=True, most=4),
        (),
        "Numbers of cores of the clusters into which one device is divided.",
        Effect.RECORDED,
        aic=AicField("1 2 0", "cluster_sizes", form=JsonForm.SPACED),
    )
    multicast_weights: bool = switch(
        "Load shared weights once for all cores.",
        Effect.RECORDED,
        aic=AicField(default=True, name="do_ddr_to_multicast", json_key="compiler_do_DDR_to_multicast"),
    )
    use_producer_dma: bool | None = option(
        Bool(),
        None,
        "Start a transfer in the thread that produces the data.",
        Effect.RECORDED,
        aic=AicField(
            default=True, name="user_dma_producer_dma_enabled", json_key="compiler_userDMAProducerDMAEnabled"
        ),
    )
    combine_inputs: bool = switch(
        "Put all inputs into one DMA buffer; if false, each has its own buffer.",
        default=True,
        aic=AicField(default=True),
    )
    combine_outputs: bool = switch(
        "Put all outputs into one DMA buffer; if false, each has its own buffer.",
        default=True,
        aic=AicField(default=True),
    )
    direct_api: bool | None = option(
        Bool(),
        None,
        "Use the shared-memory interface of the platform.",
        Effect.RECORDED,
        flag=None,
        aic=AicField(default=True, json_key="compiler_directApi"),
    )
    compile_threads: int | None = option(
        Int(ge=1, le=INT32_MAX),
        None,
        "Number of compiler threads; the container does not depend on it.",
        Effect.TIMING,
        aic=AicField(2, json_key="compiler_compileThreads"),
        in_container=False,
    )
    user_tiled: bool = switch("State that the model is already divided into tiles.", Effect.RECORDED)
    mdp_load_partition_config: PartitionConfig | None = option(
        Partitions(),
        None,
        "Partition of the program over devices; the CPU device runs the whole program.",
        Effect.VALIDATED,
        aic=AicField("mdp_config.json"),
    )
    mdp_dump_partition_config: Path | None = option(
        FilePath("JSON file to write"),
        None,
        "Write a template for `mdp_load_partition_config`.",
        Effect.FILE,
        flag=Flag(of_openqaic=None),
        aic=AicField("mdp_pipeline_template.json"),
    )
