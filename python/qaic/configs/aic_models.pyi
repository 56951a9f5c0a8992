# Written by `make docs`. Edit the option table, not this file.

import os
from collections.abc import Iterator
from typing import Any, Literal

from qaic.configs.base import ConfigModel
from qaic.options.spec import AicField, OptionSpec, Stage

class AicConfig(ConfigModel):
    @classmethod
    def list_config_options(cls) -> None: ...

def rows(stage: Stage) -> Iterator[tuple[OptionSpec, AicField]]: ...
def annotation(field: AicField) -> Any: ...
def fields_of(model: type[AicConfig]) -> dict[str, AicField]: ...
def list_config_options() -> None: ...
def type_text(kind: Any, *, optional: bool = False) -> str: ...

class AicCompilerConfig(AicConfig):
    buffer_dealloc_delay: int | None
    cluster_sizes: str | None
    combine_inputs: bool | None
    combine_outputs: bool | None
    compilation_target: str | None
    compile_threads: int | None
    convert_to_fp16: bool | None
    crc_stride: int | None
    direct_api: bool | None
    do_ddr_to_multicast: bool | None
    do_host_preproc: bool | None
    enable_debug: bool | None
    enable_depth_first: bool | None
    exclude_mxfp6_matmul: str | list[str] | None
    force_vtcm_spill: bool | None
    gen_crc: bool | None
    graph_names: list[str] | None
    hardware_version: str | None
    max_out_channel_split: str | None
    mdp_dump_partition_config: str | os.PathLike[str] | None
    mdp_load_partition_config: str | os.PathLike[str] | None
    mxfp6_matmul_weights: bool | None
    mxint8_mdp_io: bool | None
    num_of_cores: int | None
    overlap_split_factor: int | None
    perf_warnings: bool | None
    pmu_events: str | None
    pmu_recipe_opt: Literal["AxiRd", "AxiWr", "AxiRdWr", "KernelUtil"] | None
    print_ddr_stats: bool | None
    print_perf_metrics: bool | None
    retained_state: bool | None
    size_split_granularity: int | None
    stat_level: int | None
    stats_batch_size: int | None
    time_passes: bool | None
    user_dma_producer_dma_enabled: bool | None
    vtcm_working_set_limit_ratio: float | None
    def __init__(
        self,
        /,
        *,
        buffer_dealloc_delay: int | None = ...,
        cluster_sizes: str | None = ...,
        combine_inputs: bool | None = ...,
        combine_outputs: bool | None = ...,
        compilation_target: str | None = ...,
        compile_threads: int | None = ...,
        convert_to_fp16: bool | None = ...,
        crc_stride: int | None = ...,
        direct_api: bool | None = ...,
        do_ddr_to_multicast: bool | None = ...,
        do_host_preproc: bool | None = ...,
        enable_debug: bool | None = ...,
        enable_depth_first: bool | None = ...,
        exclude_mxfp6_matmul: str | list[str] | None = ...,
        force_vtcm_spill: bool | None = ...,
        gen_crc: bool | None = ...,
        graph_names: list[str] | None = ...,
        hardware_version: str | None = ...,
        max_out_channel_split: str | None = ...,
        mdp_dump_partition_config: str | os.PathLike[str] | None = ...,
        mdp_load_partition_config: str | os.PathLike[str] | None = ...,
        mxfp6_matmul_weights: bool | None = ...,
        mxint8_mdp_io: bool | None = ...,
        num_of_cores: int | None = ...,
        overlap_split_factor: int | None = ...,
        perf_warnings: bool | None = ...,
        pmu_events: str | None = ...,
        pmu_recipe_opt: Literal["AxiRd", "AxiWr", "AxiRdWr", "KernelUtil"] | None = ...,
        print_ddr_stats: bool | None = ...,
        print_perf_metrics: bool | None = ...,
        retained_state: bool | None = ...,
        size_split_granularity: int | None = ...,
        stat_level: int | None = ...,
        stats_batch_size: int | None = ...,
        time_passes: bool | None = ...,
        user_dma_producer_dma_enabled: bool | None = ...,
        vtcm_working_set_limit_ratio: float | None = ...,
        **data: Any,
    ) -> None: ...

class AicRuntimeConfig(AicConfig):
    device_ids: list[int] | None
    num_activations: int | None
    submit_num_retries: int | None
    submit_timeout: int | None
    threads_per_queue: int | None
    def __init__(
        self,
        /,
        *,
        device_ids: list[int] | None = ...,
        num_activations: int | None = ...,
        submit_num_retries: int | None = ...,
        submit_timeout: int | None = ...,
        threads_per_queue: int | None = ...,
        **data: Any,
    ) -> None: ...
