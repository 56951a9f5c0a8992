"""Rules for combinations of options, which the options reference lists."""

from qaic.options.codecs.enumerations import operator_kind
from qaic.options.files.custom_io import CustomIo
from qaic.options.files.partitions import PartitionConfig
from qaic.options.raw_option import OptionSource
from qaic.options.rules import Rule, RuleView, Severity, exclusive, format_names, needs, rule
from qaic.options.table import SPECS
from qaic.support.text import counted

#: Smallest number of bins that is fine enough to compare distributions.
_BINS_OF_KL = 255

#: Lowest level at which the device measures.
_MEASURING = 40

_QUANTIZING = ("convert_to_quantize", "load_profile", "external_quantization_file", "dump_profile")
#: options that select the parameters of integers
QUANTIZATION_SETTINGS = (
    "quantization_schema",
    "quantization_schema_activations",
    "quantization_schema_constants",
    "quantization_calibration",
    "num_histogram_bins",
    "quantization_precision",
    "quantization_precision_bias",
    "enable_rowwise",
    "enable_channelwise",
)
#: options with samples, and options for their measurement
CALIBRATION_SAMPLES = ("input_list_file", "use_random_input_data", "calibration_data", "profiling_threads")
_SDK_ONLY = tuple(spec.name for spec in SPECS if spec.sdk_only)
_RUNNING = ("num_iter", "time", "write_output_dir")


@rule("compile", severity=Severity.ERROR, summary="`compile` may be false only for a compiled container.")
def _container_needed(view: RuleView) -> str | None:
    if view.values["compile"] or view.model_is_container:
        return None
    return f"{view.format('compile')} is false, but the model is not compiled: give a container or omit it"


@rule(
    *_SDK_ONLY,
    "target",
    severity=Severity.ERROR,
    summary=f"{format_names([f'`{name}`' for name in _SDK_ONLY])} needs the SDK, so it is not "
    "available for the `target` `cpu`.",
)
def _needs_sdk(view: RuleView) -> str | None:
    asked = view.given_names(_SDK_ONLY)
    if not asked or view.values["target"] == "card":
        return None
    return f"{format_names(asked)} needs the SDK, so it is only available with the target card"


@rule("allow_unknown_options", "target", summary="`allow_unknown_options` needs the `target` `card`.")
def _unknown_for_card(view: RuleView) -> str | None:
    if not view.is_asked("allow_unknown_options") or view.values["target"] == "card":
        return None
    return f"{view.format('allow_unknown_options')} has no effect without the target card"


@rule(
    "sdp_cluster_sizes",
    "mos",
    "aic_num_cores",
    severity=Severity.ERROR,
    summary="The sum of `sdp_cluster_sizes` must equal `aic_num_cores`; `mos` must have one value or one per "
    "cluster, of at most `aic_num_cores`.",
)
def _clusters(view: RuleView) -> str | None:
    cores = view.values["aic_num_cores"]
    clusters, mos = view.values["sdp_cluster_sizes"], view.values["mos"]
    wrong = []
    if clusters and sum(clusters) != cores:
        wrong.append(
            f"the sum of {view.format('sdp_cluster_sizes')} is {sum(clusters)}, "
            f"{view.format('aic_num_cores')} is {cores}"
        )
    if len(mos) > 1 and len(mos) != max(len(clusters), 1):
        wrong.append(
            f"{view.format('mos')} has {counted(len(mos), 'value')}; one is expected, or one for each of the "
            f"{counted(max(len(clusters), 1), 'cluster')} of {view.format('sdp_cluster_sizes')}"
        )
    if mos and max(mos) > cores:
        wrong.append(
            f"{view.format('mos')} of {max(mos)} is more than {view.format('aic_num_cores')} of {cores}"
        )
    return "; ".join(wrong) or None


@rule(
    "execute_nodes_in_fp16",
    "keep_original_precision_for_nodes",
    severity=Severity.ERROR,
    summary="`execute_nodes_in_fp16` and `keep_original_precision_for_nodes` must list different operators.",
)
def _same_kind(view: RuleView) -> str | None:
    lists = ("execute_nodes_in_fp16", "keep_original_precision_for_nodes")
    first, second = (view.values[name] for name in lists)
    kinds = {operator_kind(name).lower(): name for name in second}
    both = {name: kinds[kind] for name in first if (kind := operator_kind(name).lower()) in kinds}
    if not both:
        return None
    shown = [name if name == other else f"{name} ({other})" for name, other in both.items()]
    options = format_names([view.format(name) for name in lists])
    return f"{options} both list {format_names(shown)}: keep one of them"


@rule(
    "quantization_schema",
    "quantization_schema_activations",
    "quantization_schema_constants",
    severity=Severity.ERROR,
    summary="`quantization_schema` must equal the other two schemas if they are set.",
)
def _schemas(view: RuleView) -> str | None:
    both = view.values["quantization_schema"]
    wrong = [
        name
        for name in ("quantization_schema_activations", "quantization_schema_constants")
        if both is not None and name in view.origins and view.values[name] != both
    ]
    if not wrong:
        return None
    values = format_names([f"{view.format(name)} ({view.values[name]})" for name in wrong])
    return f"{view.format('quantization_schema')} ({both}) contradicts {values}: omit one of them"


@rule(
    "graph_names",
    "network_specialization_config",
    severity=Severity.ERROR,
    summary="`graph_names` must have one name for each graph.",
)
def _graph_names(view: RuleView) -> str | None:
    names, graphs = view.values["graph_names"], view.values["network_specialization_config"]
    expected = max(len(graphs), 1)
    if not names or len(names) == expected:
        return None
    return (
        f"{view.format('graph_names')} has {counted(len(names), 'name')} for {counted(expected, 'graph')}; "
        "each set of sizes is a graph"
    )


@rule(
    "custom_io_list_file",
    "aic_hw_version",
    severity=Severity.ERROR,
    summary="bfloat16 in `custom_io_list_file` needs `aic_hw_version` `ai200`.",
)
def _bfloat16(view: RuleView) -> str | None:
    given = view.values["custom_io_list_file"]
    listed = given if isinstance(given, tuple) else ()
    names = [entry.name for entry in listed if isinstance(entry, CustomIo) and entry.precision == "bfloat16"]
    if not names or view.values["aic_hw_version"] == "ai200":
        return None
    return (
        f"{view.format('custom_io_list_file')} gives bfloat16 to {names[0]!r}, which needs "
        f"{view.format('aic_hw_version')} ai200"
    )


@rule(
    "percentile_calibration_value",
    "quantization_calibration",
    summary="`percentile_calibration_value` applies only to `quantization_calibration` `Percentile`.",
)
def _percentile(view: RuleView) -> str | None:
    method = view.values["quantization_calibration"]
    if not view.is_asked("percentile_calibration_value") or method == "Percentile":
        return None
    return (
        f"{view.format('percentile_calibration_value')} has no effect unless "
        f"{view.format('quantization_calibration')} is Percentile"
    )


@rule(
    "quantization_calibration",
    "num_histogram_bins",
    summary=f"The KL calibrations need a `num_histogram_bins` of at least {_BINS_OF_KL}.",
)
def _bins_of_kl(view: RuleView) -> str | None:
    method, bins = view.values["quantization_calibration"], view.values["num_histogram_bins"]
    if not str(method).startswith("KL") or bins >= _BINS_OF_KL:
        return None
    return (
        f"{view.format('quantization_calibration')} {method} needs {view.format('num_histogram_bins')} of at "
        f"least {_BINS_OF_KL}; with {bins}, the whole range is used"
    )


@rule(
    "quantization_precision",
    summary="`quantization_precision` `Int16` is documented for the command line only.",
)
def _int16(view: RuleView) -> str | None:
    origin = view.origins.get("quantization_precision")
    if view.values["quantization_precision"] != "Int16":
        return None
    if origin is None or origin.source is OptionSource.ARGV:
        return None
    return f"{origin} Int16 is documented for the command line only; a session with the card may refuse it"


@rule(
    "input_list_file",
    "use_random_input_data",
    "calibration_data",
    "profiling_threads",
    summary="Samples need `convert_to_quantize` or `dump_profile`, except on a command line.",
)
def _samples_unused(view: RuleView) -> str | None:
    if any(view.is_set(name) for name in ("convert_to_quantize", "dump_profile")):
        return None
    # From a command line they may also be the inputs of the run step.
    unused = [
        name
        for name in CALIBRATION_SAMPLES
        if view.is_asked(name) and view.origins[name].source is not OptionSource.ARGV
    ]
    if not unused:
        return None
    return (
        f"{format_names(view.asked_names(unused))} without {view.format('convert_to_quantize')} or "
        f"{view.format('dump_profile')}: nothing is measured"
    )


@rule(
    "input_list_file",
    "use_random_input_data",
    summary="`input_list_file` has precedence over `use_random_input_data`.",
)
def _list_or_random(view: RuleView) -> str | None:
    if len(view.asked_names(("input_list_file", "use_random_input_data"))) < 2:
        return None
    return (
        f"{view.format('input_list_file')} and {view.format('use_random_input_data')} are both given; "
        "the list is used"
    )


@rule(
    "clip_fp16_constants",
    "convert_to_fp16",
    summary="`clip_fp16_constants` needs nodes that compute in float16.",
)
def _clip_without_fp16(view: RuleView) -> str | None:
    halves = ("convert_to_fp16", "execute_nodes_in_fp16", "node_precision_info_file")
    if "clip_fp16_constants" not in view.origins or any(view.is_set(name) for name in halves):
        return None
    return f"{view.format('clip_fp16_constants')} has no effect without {view.format('convert_to_fp16')}"


@rule(
    "mdp_load_partition_config",
    "aic_num_cores",
    summary="`numCores` in `mdp_load_partition_config` must equal `aic_num_cores`.",
)
def _cores_of_partitions(view: RuleView) -> str | None:
    config, cores = view.values["mdp_load_partition_config"], view.values["aic_num_cores"]
    if not isinstance(config, PartitionConfig):
        return None
    for partition in config.partitions:
        for device, given in zip(partition.devices, partition.cores, strict=True):
            if given not in {None, cores}:
                return (
                    f"{view.format('mdp_load_partition_config')} gives device {device} of {partition.name!r} "
                    f"{given} cores; every device uses the {cores} of {view.format('aic_num_cores')}"
                )
    return None


@rule(
    "allow_mxint8_mdp_io",
    "mdts_mos",
    "mdp_load_partition_config",
    summary="`allow_mxint8_mdp_io` and `mdts_mos` need a partition of several devices.",
)
def _several_devices(view: RuleView) -> str | None:
    config = view.values["mdp_load_partition_config"]
    asked = view.asked_names(("allow_mxint8_mdp_io", "mdts_mos"))
    if not asked or (isinstance(config, PartitionConfig) and config.devices > 1):
        return None
    return f"{format_names(asked)} without a partition of several devices has no effect"


@rule(
    "ddr_stats",
    "aic_pmu_recipe",
    "aic_pmu_events",
    "stats_level",
    summary=f"Hardware counters need a `stats_level` of at least {_MEASURING}.",
)
def _measured(view: RuleView) -> str | None:
    asked = view.asked_names(("ddr_stats", "aic_pmu_recipe", "aic_pmu_events"))
    level = view.values["stats_level"]
    if not asked or level >= _MEASURING:
        return None
    needed = f"{view.format('stats_level')} is {level}; {_MEASURING} or more is needed"
    return f"{format_names(asked)}: no effect, because {needed}"


@rule("compile_only", *_RUNNING, summary="`compile_only` disables options of a run.")
def _compile_only(view: RuleView) -> str | None:
    asked = view.asked_names(_RUNNING)
    if not asked or not view.values["compile_only"]:
        return None
    return f"{format_names(asked)}: no effect, because {view.format('compile_only')} only compiles"


RULES: tuple[Rule, ...] = (
    exclusive(
        "metrics_and_profiling",
        "enable_metrics",
        "enable_profiling",
        because="profiling also records the metrics, so omit {0}",
    ),
    _container_needed,
    _needs_sdk,
    exclusive(
        "profile_sources", "dump_profile", "load_profile", "convert_to_quantize", "external_quantization_file"
    ),
    exclusive("preprocessing", "host_preproc", "aic_preproc", because="each is the opposite of the other"),
    exclusive(
        "device_preprocessing_of_graphs",
        "aic_preproc",
        "network_specialization_config",
        because="several sets of sizes need preprocessing on the host",
    ),
    exclusive("pmu", "aic_pmu_recipe", "aic_pmu_events", because="a recipe is a list of events"),
    exclusive("partition_files", "mdp_load_partition_config", "mdp_dump_partition_config"),
    exclusive(
        "functions",
        "sub_functions",
        "always_expand_onnx_functions",
        because="each is the opposite of the other",
    ),
    exclusive("samples", "calibration_data", "input_list_file"),
    exclusive("random_samples", "calibration_data", "use_random_input_data"),
    exclusive("length_of_run", "num_iter", "time"),
    _clusters,
    _same_kind,
    _schemas,
    _graph_names,
    _bfloat16,
    needs("state", ("mxint8_kv_cache", "split_retained_state_io"), ("retained_state",), Severity.ERROR),
    needs("whole_caches", ("whole_caches",), ("retained_state",)),
    needs("crc_sections", ("io_crc_stride",), ("io_crc",), Severity.ERROR),
    needs("exclude_without_mxfp6", ("exclude_mxfp6_matmul",), ("mxfp6_matmul",)),
    needs("depth_first", ("aic_depth_first_mem",), ("aic_enable_depth_first",)),
    needs("quantization", QUANTIZATION_SETTINGS, _QUANTIZING),
    needs("mismatch", ("allow_profile_mismatch",), ("load_profile", "external_quantization_file")),
    needs("written_outputs", ("write_output_start_iter", "write_output_num_samples"), ("write_output_dir",)),
    needs(
        "profiled_run",
        (
            "aic_profiling_out_dir",
            "aic_profiling_num_samples",
            "aic_profiling_start_iter",
            "aic_profiling_start_delay",
        ),
        ("aic_profiling_type",),
    ),
    _samples_unused,
    _list_or_random,
    _percentile,
    _bins_of_kl,
    _int16,
    _clip_without_fp16,
    _cores_of_partitions,
    _several_devices,
    _measured,
    _compile_only,
    _unknown_for_card,
)


def broken(view: RuleView, severity: Severity) -> list[tuple[Rule, str]]:
    """Return the violated rules of one severity, with their messages."""
    checked = ((one, one.check(view)) for one in RULES if one.severity is severity)
    return [(one, text) for one, text in checked if text is not None]
