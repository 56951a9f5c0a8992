"""Configuration classes: every form keeps the fields that were set, and adds nothing."""

import copy
import json
import pickle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qaic.configs import (
    AicCompilerConfig,
    AicConfigHelper,
    AicRuntimeConfig,
    CompileConfig,
    HtpGraphConfig,
    htp,
)
from qaic.configs.aic_models import fields_of
from qaic.errors import OptionError
from qaic.options import resolve
from qaic.options.spec import JsonForm
from qaic.options.table import SPECS

# Valid values of each field, so that all forms can contain the same set.
VALUES = {
    "buffer_dealloc_delay": st.integers(0, 10),
    "cluster_sizes": st.sampled_from(["2 2", "1 1"]),
    "compilation_target": st.just("hardware"),
    "compile_threads": st.integers(1, 8),
    "crc_stride": st.integers(1, 4096),
    "exclude_mxfp6_matmul": st.sampled_from(["m", "m n"]),
    "graph_names": st.lists(st.sampled_from(["one", "two"]), unique=True, min_size=1),
    "hardware_version": st.sampled_from(["2.0", "ai100"]),
    "max_out_channel_split": st.sampled_from(["1", "1 2"]),
    "num_of_cores": st.integers(1, 16),
    "overlap_split_factor": st.integers(1, 8),
    "pmu_events": st.sampled_from(["3F", "3F 70 200"]),
    "pmu_recipe_opt": st.sampled_from(["AxiRd", "KernelUtil"]),
    "size_split_granularity": st.integers(512, 2048),
    "stat_level": st.sampled_from([0, 40, 70]),
    "stats_batch_size": st.integers(1, 8),
    "vtcm_working_set_limit_ratio": st.floats(0, 1),
    "device_ids": st.lists(st.integers(0, 3), unique=True, min_size=1),
    "num_activations": st.integers(1, 4),
    "submit_num_retries": st.integers(0, 9),
    "submit_timeout": st.integers(0, 9),
    "threads_per_queue": st.integers(1, 9),
    # Files that do not exist: the classes only read the names.
    "mdp_dump_partition_config": st.just("dump.json"),
    "mdp_load_partition_config": st.just("load.json"),
}
FILES = {"mdp_dump_partition_config", "mdp_load_partition_config"}


def field_sets(model, without=frozenset()):
    """Sets of fields with values."""
    optional = {
        name: st.booleans() if field.form is JsonForm.BOOL else VALUES[name]
        for name, field in fields_of(model).items()
        if name not in without
    }
    return st.fixed_dictionaries({}, optional=optional)


@given(field_sets(AicCompilerConfig), field_sets(AicRuntimeConfig))
def test_the_dictionary_holds_what_is_set_and_reads_back(compiler, runtime):
    configs = AicCompilerConfig(**compiler), AicRuntimeConfig(**runtime)
    written = AicConfigHelper.to_backend_extension_dict(*configs)
    keys = {name: field.json_key for kind in configs for name, field in fields_of(type(kind)).items()}
    assert written == {keys[name]: value for name, value in {**compiler, **runtime}.items()}
    again = AicConfigHelper.from_backend_extension_dict(json.loads(json.dumps(written)))
    assert again == (*configs, {})


@given(field_sets(AicCompilerConfig), st.sampled_from(["copy", "json", "deep", "pickle"]))
def test_renewed_configurations_are_equal(fields, way):
    config = CompileConfig(backend="AIC", compiler_custom_configs=AicCompilerConfig(**fields), debug=True)
    again = {
        "copy": config.model_copy,
        "json": lambda: CompileConfig(**json.loads(config.model_dump_json(exclude_unset=True))),
        "deep": lambda: copy.deepcopy(config),
        "pickle": lambda: pickle.loads(pickle.dumps(config)),
    }[way]()
    assert again.to_backend_extension_json() == config.to_backend_extension_json()
    if way != "json":
        assert again == config


def resolved(options):
    return resolve(options, options_path=None, model_is_container=False)


@given(field_sets(AicCompilerConfig, FILES))
def test_fields_keys_and_names_of_options_mean_the_same(fields):
    names = {spec.aic.name: spec.name for spec in SPECS if spec.aic is not None}
    keys = {name: field.json_key for name, field in fields_of(AicCompilerConfig).items()}
    outcomes = []
    for spelled in (names, keys, {name: name for name in names}):
        try:
            found = resolved({spelled[name]: value for name, value in fields.items()})
            outcomes.append((found.compile, found.set_compile))
        except OptionError as error:
            outcomes.append((error.code, error.context.get("options")))
    assert outcomes[0] == outcomes[1] == outcomes[2]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
GRAPHS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "name": st.sampled_from("abc"),
            "optimization_type": st.integers(1, 3),
            "vtcm_size_in_mb": st.integers(0, 8),
            "dlbc": st.booleans(),
        },
    ),
    max_size=6,
)


@given(GRAPHS)
def test_graphs_come_back_one_by_one(given_graphs):
    graphs = [HtpGraphConfig(**options) for options in given_graphs]
    written = json.loads(json.dumps(htp.graphs_to_json(graphs)))
    assert htp.graphs_from_json(written, HtpGraphConfig) == graphs


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("extensions") / "x.json"


SECTIONS = ["context", "graphs", "devices", "memory", "groupContext", "backend_extensions", "other"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    content=st.dictionaries(st.sampled_from(SECTIONS) | st.text(max_size=5), PLAIN, max_size=5) | PLAIN,
    backend=st.sampled_from(["HTP", "AIC"]),
    passthrough=st.booleans(),
)
def test_any_file_is_taken_over_whole_or_refused(file, content, backend, passthrough):
    file.write_text(json.dumps(content))
    config = CompileConfig(backend=backend)
    try:
        config.populate_from_backend_extensions(file, passthrough=passthrough, allow_aic=True)
    except (OptionError, FileNotFoundError, IsADirectoryError):
        assert config == CompileConfig(backend=backend)
        return
    written = json.loads(config.to_backend_extension_json())
    if isinstance(content.get("backend_extensions"), dict) and len(content) == 1:
        return
    if passthrough or backend == "AIC":
        assert written == content
    else:
        assert set(written) == set(content)
        again = CompileConfig(backend=backend)
        file.write_text(json.dumps(written))
        assert again.populate_from_backend_extensions(file) == config
