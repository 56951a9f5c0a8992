"""Documented option names that this version does not act on yet.

They are refused by name rather than as typing errors: a user who copies an option from the vendor's
documents learns that the spelling is right and the version is not. A row leaves this list when its option
gets its effect and a row in `models`.
"""

from __future__ import annotations

from dataclasses import dataclass

from qaic.options.spec import Stage


@dataclass(frozen=True, slots=True)
class UnsupportedOption:
    """A documented option without an effect in this version.

    Parameters
    ----------
    name
        Canonical name.
    stage
        When the option would be used.
    aliases
        Lookup keys of other names: flag, field and JSON names, misspellings.
    """

    name: str
    stage: Stage
    aliases: tuple[str, ...] = ()

    @property
    def keys(self) -> frozenset[str]:
        """Every lookup key of the option."""
        return frozenset((self.name, *self.aliases))


# One option a line: the canonical name, then its aliases. Order of compile-options §1.
_COMPILE = """
output_node_names output_node_name
dynamic_shape_input
always_expand_onnx_functions
batchsize
custom_io_list_file custom_io_list
dump_custom_io_config_template_file dump_custom_io_config_template
split_retained_state_io
sub_functions
register_custom_op
load_embedding_tables
dump_embedding_tables
host_preproc do_host_preproc compiler_do_host_preproc
aic_preproc
aic_hw compilation_target compiler_compilation_target
aic_hw_version hardware_version compiler_hardware_version hwversion
graph_names
qpc_crc
io_encrypt
execute_nodes_in_fp16
node_precision_info_file node_precision_info
keep_original_precision_for_nodes
mxfp6_matmul mxfp6 mxfp6_matmul_weights compiler_mxfp6_matmul_weights
exclude_mxfp6_matmul compiler_exclude_mxfp6_matmul
allow_mxint8_mdp_io mxint8_mdp_io compiler_mxint8_mdp_io
mxint8_kv_cache
external_quantization_file external_quantization
quantization_schema_activations
quantization_schema_constants
quantization_schema
quantization_calibration
percentile_calibration_value
num_histogram_bins
quantization_precision
quantization_precision_bias
enable_rowwise
enable_channelwise
dump_profile
load_profile
convert_to_quantize
profiling_threads
input_list_file
use_random_input_data
mos max_out_channel_split compiler_max_out_channel_split
ols overlap_split_factor compiler_overlap_split_factor
mdts_mos
allocator_dealloc_delay allocator_dealloac_delay buffer_dealloc_delay compiler_buffer_dealloc_delay
size_split_granularity compiler_size_split_granularity
vtcm_working_set_limit_ratio compiler_vtcm_working_set_limit_ratio
force_vtcm_spill compiler_force_vtcm_spill
aic_enable_depth_first enable_depth_first compiler_enable_depth_first
aic_depth_first_mem compiler_depth_first_mem
sdp_cluster_sizes cluster_sizes compiler_cluster_sizes
multicast_weights do_ddr_to_multicast compiler_do_ddr_to_multicast
use_producer_dma user_dma_producer_dma_enabled compiler_userdmaproducerdmaenabled
direct_api compiler_directapi
compile_threads compiler_compilethreads
user_tiled
mdp_dump_partition_config compiler_mdp_dump_partition_config
stats_level stat_level compiler_stat_level
stats_batchsize stats_batch_size compiler_stats_batch_size
ddr_stats print_ddr_stats compiler_printddrstats
aic_pmu_recipe pmu_recipe_opt compiler_pmu_recipe_opt
aic_pmu_events pmu_events compiler_pmu_events
aic_perf_warnings perf_warnings compiler_perfwarnings
aic_perf_metrics print_perf_metrics compiler_printperfmetrics
time_passes compiler_time_passes
enable_debug compiler_enabledebug
io_crc gen_crc compiler_gencrc
io_crc_stride crc_stride compiler_crc_stride
verbose
target
allow_unknown_options
strict_aic
aic_operator_list
allow_profile_mismatch
calibration_data
"""

_RUNTIME = """
process_lock runtime_process_lock
allow_hw_mismatch
"""

_CLI = """
json_input_file
operators_supported
aic_num_of_instances
help
usage
aic_profiling_type
aic_profiling_out_dir
aic_profiling_num_samples
aic_profiling_start_iter
aic_profiling_start_delay
num_iter
time
write_output_dir
write_output_start_iter
write_output_num_samples
"""


def _rows(stage: Stage, text: str) -> list[UnsupportedOption]:
    names = [line.split() for line in text.strip().splitlines()]
    return [UnsupportedOption(name, stage, tuple(aliases)) for name, *aliases in names]


UNSUPPORTED: tuple[UnsupportedOption, ...] = (
    *_rows(Stage.COMPILE, _COMPILE),
    *_rows(Stage.RUNTIME, _RUNTIME),
    *_rows(Stage.CLI, _CLI),
)
