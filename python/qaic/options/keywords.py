"""Types of the keyword arguments of `qaic.Session` and `qaic.compile`.

Written by ``make docs``: edit the option table, not this module. None means "not
given". At run time every option also takes the text that a YAML file would have.
"""

# Annotations are evaluated at once: one that is kept as text is compiled when the class is made, and
# a hundred of them were a tenth of what importing `qaic.Session` costs.
# ruff: noqa: E501
# fmt: off

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

if TYPE_CHECKING:
    import numpy as np

    from qaic.options.codecs.structures import ModelInput

_Path: TypeAlias = str | os.PathLike[str]
_Names: TypeAlias = Sequence[str] | str


class SessionKeywords(TypedDict, total=False):
    """Options of `qaic.Session` apart from those in its signature."""

    compile: bool | None
    strict_options: bool | None
    output_dir: _Path | None
    output_node_names: _Names | None
    extra_output_tensors: _Names | None
    all_intermediate_outputs: bool | None
    model_inputs: "Sequence[Mapping[str, Any] | ModelInput | str] | Mapping[str, Any] | str | None"
    onnx_define_symbol: Mapping[str, int] | Sequence[tuple[str, int]] | Sequence[str] | str | None
    output_shapes: Mapping[str, Sequence[int | str]] | Sequence[str] | str | None
    dynamic_shape_input: _Names | None
    always_expand_onnx_functions: bool | None
    batchsize: int | None
    network_specialization_config: _Path | Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
    custom_io_list_file: _Path | Sequence[Mapping[str, Any]] | None
    dump_custom_io_config_template_file: _Path | None
    retained_state: bool | None
    split_retained_state_io: bool | None
    whole_caches: bool | None
    stored_weights: bool | None
    split_model_io: bool | None
    sub_functions: bool | None
    register_custom_op: Sequence[_Path] | str | None
    load_embedding_tables: _Path | None
    dump_embedding_tables: _Path | None
    host_preproc: bool | None
    aic_preproc: bool | None
    compile_only: bool | None
    aic_hw: bool | Literal["hardware"] | None
    aic_hw_version: Literal["2.0", "ai100", "ai200"] | float | None
    graph_names: _Names | None
    qpc_crc: bool | None
    io_encrypt: str | None
    target: Literal["cpu", "card"] | None
    allow_unknown_options: bool | None
    strict_aic: bool | None
    aic_operator_list: _Path | None
    convert_to_fp16: bool | None
    clip_fp16_constants: bool | None
    execute_nodes_in_fp16: _Names | None
    node_precision_info_file: _Path | Mapping[str, Sequence[str]] | None
    keep_original_precision_for_nodes: _Names | None
    mxfp6_matmul: bool | None
    exclude_mxfp6_matmul: _Names | None
    allow_mxint8_mdp_io: bool | None
    mxint8_kv_cache: bool | None
    external_quantization_file: _Path | None
    quantization_schema_activations: Literal["asymmetric", "symmetric", "symmetric_with_uint8", "symmetric_with_power2_scale"] | None
    quantization_schema_constants: Literal["asymmetric", "symmetric", "symmetric_with_uint8", "symmetric_with_power2_scale"] | None
    quantization_schema: Literal["asymmetric", "symmetric", "symmetric_with_uint8", "symmetric_with_power2_scale"] | None
    quantization_calibration: Literal["None", "KLMinimization", "KLMinimizationV2", "Percentile", "MSE", "SQNR"] | None
    percentile_calibration_value: float | None
    num_histogram_bins: int | None
    quantization_precision: Literal["Int8", "Int16"] | None
    quantization_precision_bias: Literal["Int8", "Int32"] | None
    enable_rowwise: bool | None
    enable_channelwise: bool | None
    dump_profile: _Path | None
    load_profile: _Path | None
    convert_to_quantize: bool | None
    profiling_threads: int | None
    input_list_file: _Path | None
    use_random_input_data: bool | Literal["uniform", "gaussian"] | None
    calibration_data: "Iterable[Mapping[str, np.ndarray[Any, Any]]] | None"
    allow_profile_mismatch: bool | None
    aic_num_cores: int | None
    mos: int | Sequence[int] | str | None
    ols: int | None
    ols_config: _Path | None
    mdts_mos: int | None
    allocator_dealloc_delay: int | None
    allocator_dealloac_delay: int | None
    size_split_granularity: int | None
    vtcm_working_set_limit_ratio: float | None
    force_vtcm_spill: bool | None
    aic_enable_depth_first: bool | None
    aic_depth_first_mem: int | None
    sdp_cluster_sizes: Sequence[int] | str | None
    multicast_weights: bool | None
    use_producer_dma: bool | None
    combine_inputs: bool | None
    combine_outputs: bool | None
    direct_api: bool | None
    compile_threads: int | None
    user_tiled: bool | None
    mdp_load_partition_config: _Path | Mapping[str, Any] | None
    mdp_dump_partition_config: _Path | None
    stats_level: int | None
    stats_batchsize: int | None
    ddr_stats: bool | None
    aic_pmu_recipe: Literal["AxiRd", "AxiWr", "AxiRdWr", "KernelUtil", "HmxMacs"] | None
    aic_pmu_events: Sequence[int | str] | str | None
    aic_perf_warnings: bool | None
    aic_perf_metrics: bool | None
    time_passes: bool | None
    enable_debug: bool | None
    io_crc: bool | None
    io_crc_stride: int | None
    verbose: int | None
    dev_id: int | Sequence[int] | str | None
    num_activations: int | None
    set_size: int | None
    submit_timeout: int | None
    submit_num_retries: int | None
    threads_per_queue: int | None
    oversubscription_name: str | None
    enable_metrics: bool | None
    enable_profiling: bool | None
    allow_hw_mismatch: bool | None
    process_lock: str | None


class CompileKeywords(SessionKeywords, total=False):
    """Options of `qaic.compile` apart from those in its signature."""

    options_path: _Path | None
    backend: Literal["aic", "qaic"] | None
