"""``CompileConfig`` for AIC: fields, exclusions, dumps, files, names of containers."""

import copy
import json
import logging
import pickle

import pytest
from pydantic import ValidationError

from qaic.configs import (
    AicCompilerConfig,
    BackendType,
    CompileConfig,
    CompilerModes,
    extension_json,
    to_tool_options,
)
from qaic.errors import OptionError
from qaic.options import resolve

DEFAULTS = {
    "backend": BackendType.AIC,
    "backend_binary_path": None,
    "compiler_custom_configs": None,
    "context_custom_configs": None,
    "data_format_config": None,
    "debug": False,
    "device_custom_configs": None,
    "enable_backend_trace": False,
    "enable_intermediate_outputs": None,
    "graph_custom_configs": None,
    "group_context_config": None,
    "io_tensor_mem_type": "raw",
    "log_level": "error",
    "memory_custom_config": None,
    "module_format": "bin",
    "op_packages": None,
    "set_output_tensors": None,
    "soc_configs": None,
    "soc_details": None,
}


def test_fields_and_defaults_are_those_of_the_documentation():
    config = CompileConfig(backend="AIC")
    assert config.model_dump() == DEFAULTS
    assert list(config.model_dump()) == sorted(DEFAULTS)
    assert config.model_fields_set == {"backend"}


def test_the_backend_becomes_a_member_that_equals_its_text():
    config = CompileConfig(backend="AIC")
    assert config.backend is BackendType.AIC
    assert config.backend == "AIC"
    assert f"{config.backend}" == "AIC"
    assert CompileConfig(backend=BackendType.LPAI).backend is BackendType.LPAI


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        ("aic", "upper case: 'AIC'"),
        ("CPU", "nothing can be compiled ahead of time for the back end CPU"),
        (BackendType.GPU, "nothing can be compiled ahead of time for the back end GPU"),
        ("TPU", "found 'TPU'; expected one of HTP, AIC, HTP_MCP, LPAI"),
        (5, "found 5"),
        (None, "found None"),
    ],
)
def test_other_backends_are_refused(backend, reason):
    with pytest.raises(ValidationError, match=reason):
        CompileConfig(backend=backend)


def test_a_backend_is_required():
    with pytest.raises(ValidationError, match="Field required"):
        CompileConfig()


def test_unknown_fields_are_refused_with_the_nearest():
    with pytest.raises(ValidationError, match="did you mean backend_binary_path"):
        CompileConfig(backend="AIC", backend_binary="x")
    with pytest.raises(ValidationError, match="did you mean num_of_cores") as caught:
        CompileConfig(backend="AIC", compiler_custom_configs={"num_of_core": 4})
    assert caught.value.errors()[0]["loc"] == ("compiler_custom_configs", "num_of_core")
    with pytest.raises(ValidationError, match="by its name and by its JSON key"):
        CompileConfig(backend="AIC", compiler_custom_configs={"num_of_cores": 4, "compiler_num_of_cores": 4})
    config = CompileConfig(backend="AIC")
    with pytest.raises(ValidationError, match="did you mean debug"):
        config.debugg = True


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("debug", "perhaps"),
        ("io_tensor_mem_type", "shared"),
        ("module_format", "so"),
        ("log_level", "loud"),
        ("backend_binary_path", ""),
        ("backend_binary_path", "folder/"),
        ("backend_binary_path", "folder/.."),
        ("backend_binary_path", ".bin"),
        ("backend_binary_path", "a\0b"),
        ("backend_binary_path", 7),
        ("set_output_tensors", 7),
        ("soc_configs", {"soc_model": "x"}),
        ("compiler_custom_configs", "x"),
    ],
)
def test_wrong_values_are_refused_and_change_nothing(field, value):
    with pytest.raises(ValidationError):
        CompileConfig(backend="AIC", **{field: value})
    config = CompileConfig(backend="AIC")
    with pytest.raises(ValidationError):
        setattr(config, field, value)
    assert config.model_dump() == DEFAULTS


# --- exclusions ---------------------------------------------------------------------------------------------


def test_compiler_options_exist_for_aic_only():
    options = AicCompilerConfig(num_of_cores=2)
    with pytest.raises(ValidationError, match="exists for AIC only, found the backend HTP"):
        CompileConfig(backend="HTP", compiler_custom_configs=options)
    config = CompileConfig(backend="HTP")
    with pytest.raises(ValidationError, match="exists for AIC only"):
        config.compiler_custom_configs = options
    assert config.compiler_custom_configs is None
    config = CompileConfig(backend="AIC", compiler_custom_configs=options)
    with pytest.raises(ValidationError, match="exists for AIC only"):
        config.backend = "HTP"
    assert config.backend == "AIC"


def test_two_choices_of_outputs_exclude_each_other():
    with pytest.raises(ValidationError, match="exclude each other"):
        CompileConfig(backend="AIC", set_output_tensors=["a"], enable_intermediate_outputs=True)
    config = CompileConfig(backend="AIC", set_output_tensors=["a"])
    with pytest.raises(ValidationError, match="exclude each other"):
        config.enable_intermediate_outputs = True
    assert config.enable_intermediate_outputs is None
    config = CompileConfig(backend="AIC", enable_intermediate_outputs=True)
    with pytest.raises(ValidationError, match="exclude each other"):
        config.set_output_tensors = ["a"]
    assert config.set_output_tensors is None


def test_an_empty_choice_excludes_nothing():
    config = CompileConfig(backend="AIC", set_output_tensors=[], enable_intermediate_outputs=True)
    config.set_output_tensors = None
    config.enable_intermediate_outputs = False
    config.set_output_tensors = "graph0:a,b;graph1:c"
    assert config.set_output_tensors == ["graph0:a,b;graph1:c"]


def test_compiler_options_may_be_a_mapping():
    config = CompileConfig(backend="AIC", compiler_custom_configs={"num_of_cores": 2})
    assert config.compiler_custom_configs == AicCompilerConfig(num_of_cores=2)


# --- as data ------------------------------------------------------------------------------------------------


def test_configurations_inside_stay_objects():
    options = AicCompilerConfig(num_of_cores=2)
    dumped = CompileConfig(backend="AIC", compiler_custom_configs=options).model_dump()
    assert isinstance(dumped["compiler_custom_configs"], AicCompilerConfig)


@pytest.mark.parametrize(
    "arguments", [{"exclude": {"debug", "backend"}}, {"context": {"exclude": ["debug", "backend"]}}]
)
def test_fields_can_be_left_out(arguments):
    dumped = CompileConfig(backend="AIC").model_dump(**arguments)
    assert dumped == {name: value for name, value in DEFAULTS.items() if name not in {"debug", "backend"}}


def test_pydantic_s_own_choices_of_fields():
    config = CompileConfig(backend="AIC", debug=True)
    assert config.model_dump(exclude_unset=True) == {"backend": "AIC", "debug": True}
    assert config.model_dump(include={"debug"}) == {"debug": True}
    assert None not in config.model_dump(exclude_none=True).values()
    assert config.model_dump(mode="json")["backend"] == "AIC"
    assert json.loads(config.model_dump_json())["debug"] is True


def test_the_back_end_extension_dictionary():
    config = CompileConfig(
        backend="AIC", compiler_custom_configs=AicCompilerConfig(num_of_cores=2, cluster_sizes="1 1")
    )
    expected = {"compiler_cluster_sizes": "1 1", "compiler_num_of_cores": 2}
    assert config.model_dump(context={"backend_extensions": True}) == expected
    assert json.loads(config.to_backend_extension_json()) == expected
    assert config.to_backend_extension_json(indent=1).startswith('{\n "compiler_cluster_sizes"')
    assert CompileConfig(backend="AIC").model_dump(context={"backend_extensions": True}) == {}
    assert json.loads(config.model_dump_json(context={"backend_extensions": True})) == expected
    without = {"backend_extensions": True, "exclude": ["compiler_custom_configs"]}
    assert config.model_dump(context=without) == {}


@pytest.mark.parametrize("renew", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_copies_are_equal(renew, tmp_path):
    file = tmp_path / "x.json"
    file.write_text('{"compiler_num_of_cores": 2, "compiler_depth_first_mem": 18}')
    config = CompileConfig.from_backend_extensions("AIC", file, allow_aic=True, debug=True)
    again = renew(config)
    assert again == config
    assert again.model_fields_set == config.model_fields_set
    assert again.to_backend_extension_json() == config.to_backend_extension_json()


# --- files --------------------------------------------------------------------------------------------------


def test_files_of_aic_are_read_only_when_asked_for(tmp_path):
    file = tmp_path / "x.json"
    file.write_text('{"compiler_num_of_cores": 2}')
    with pytest.raises(ValueError, match="found the backend AIC, expected HTP"):
        CompileConfig.from_backend_extensions("AIC", file)
    config = CompileConfig.from_backend_extensions("AIC", file, allow_aic=True)
    assert config.compiler_custom_configs == AicCompilerConfig(num_of_cores=2)


def test_keys_that_are_no_fields_are_written_back(tmp_path):
    data = {"compiler_num_of_cores": 2, "compiler_depth_first_mem": 18, "runtime_process_lock": True}
    file = tmp_path / "x.json"
    file.write_text(json.dumps(data))
    config = CompileConfig.from_backend_extensions("AIC", file, allow_aic=True)
    assert config.model_dump(context={"backend_extensions": True}) == data
    assert config.other_options == {"compiler_depth_first_mem": 18, "runtime_process_lock": True}


def test_overwriting_a_field_warns(tmp_path, caplog):
    file = tmp_path / "x.json"
    file.write_text('{"compiler_num_of_cores": 2}')
    config = CompileConfig(backend="AIC", compiler_custom_configs=AicCompilerConfig(stat_level=70))
    assert config.populate_from_backend_extensions(file, allow_aic=True) is config
    assert "overwrites compiler_custom_configs" in caplog.text
    assert config.compiler_custom_configs == AicCompilerConfig(num_of_cores=2)


def test_the_file_that_names_the_file(tmp_path):
    config = CompileConfig(backend="AIC", compiler_custom_configs=AicCompilerConfig(num_of_cores=2))
    options = to_tool_options(config, tmp_path, prefix="net_")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net_aic_extensions.json"]
    assert options == {
        "backend_extensions": {
            "shared_library_path": "libQnnAicNetRunExtensions.so",
            "config_file_path": str(tmp_path / "net_aic_extensions.json"),
        }
    }
    inline = to_tool_options(config)
    assert inline["backend_extensions"]["config_dict"] == {"compiler_num_of_cores": 2}
    for form in (options, inline):
        file = tmp_path / "outer.json"
        file.write_text(json.dumps(form))
        assert CompileConfig.from_backend_extensions("AIC", file, allow_aic=True) == config
    with pytest.raises(OptionError, match="expected AIC"):
        to_tool_options(CompileConfig(backend="HTP"))


def test_a_file_passed_through_is_not_read(tmp_path, caplog):
    file = tmp_path / "x.json"
    file.write_text('{"compiler_num_of_cores": "many", "more": [1]}')
    config = CompileConfig.from_backend_extensions("AIC", file, allow_aic=True, passthrough=True)
    assert "passed through" in caplog.text
    assert config.compiler_custom_configs is None
    assert json.loads(config.to_backend_extension_json()) == {"compiler_num_of_cores": "many", "more": [1]}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[]", "found a JSON list, expected an object"),
        ("{", "not valid JSON"),
        ('{"compiler_stat_level": 1, "compiler_stat_level": 2}', "occurs twice"),
        ('{"compiler_num_of_cores": "many"}', "compiler_num_of_cores"),
        ('{"backend_extensions": {}}', "config_file_path"),
        ("\udcff", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_wrong_files_change_nothing(tmp_path, content, reason):
    file = tmp_path / "x.json"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    config = CompileConfig(backend="AIC", compiler_custom_configs=AicCompilerConfig(stat_level=70))
    before = config.model_copy(deep=True)
    with pytest.raises(OptionError, match=reason) as caught:
        config.populate_from_backend_extensions(file, allow_aic=True)
    assert str(file) in str(caught.value)
    assert config == before


def test_a_huge_file_is_not_read(tmp_path):
    file = tmp_path / "x.json"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(OptionError, match="more than 4 MiB"):
        CompileConfig.from_backend_extensions("HTP", file)


def test_a_missing_file_is_not_found(tmp_path):
    with pytest.raises(FileNotFoundError):
        CompileConfig.from_backend_extensions("HTP", tmp_path / "none.json")


# --- other fields -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["myqpc", "myqpc.bin", "myqpc_backend", "myqpc_backend.bin"])
@pytest.mark.parametrize("folder", ["", "sub/", "/abs/"])
def test_binaries_get_the_suffix_once(given, folder):
    config = CompileConfig(backend="AIC", backend_binary_path=folder + given)
    assert str(config.backend_binary_file) == folder + "myqpc_backend.bin"


def test_other_dots_belong_to_the_name():
    assert (
        CompileConfig(backend="AIC", backend_binary_path="v1.2").backend_binary_file.name
        == "v1.2_backend.bin"
    )
    assert CompileConfig(backend="AIC").backend_binary_file is None


@pytest.mark.parametrize(
    ("level", "name"), [(logging.DEBUG, "debug"), (logging.ERROR, "error"), (60, "critical")]
)
def test_without_a_log_level_the_logger_decides(level, name):
    logger = logging.getLogger("qaic")
    before = logger.level
    logger.setLevel(level)
    try:
        config = CompileConfig(backend="AIC", log_level=None)
    finally:
        logger.setLevel(before)
    assert config.log_level == name


@pytest.mark.parametrize("name", ["critical", "CRITICAL", "Error", "WARN", "Trace"])
def test_log_levels_are_read_in_any_case(name):
    config = CompileConfig(backend="AIC", log_level=name)
    assert config.log_level == name.lower()
    config.log_level = name.swapcase()
    assert config.log_level == name.lower()


def test_the_data_format_may_be_a_path(tmp_path):
    path = tmp_path / "format.json"
    assert CompileConfig(backend="AIC", data_format_config=path).data_format_config == str(path)


def test_soc_details_are_for_htp(caplog):
    assert CompileConfig(backend="AIC", soc_details="chipset:X").soc_details == "chipset:X"
    assert "soc_details is ignored" in caplog.text


def test_modes_are_for_htp():
    config = CompileConfig(backend="AIC")
    for mode in ("weight_sharing", CompilerModes.WEIGHT_SHARING):
        with pytest.raises(ValueError, match="found the backend AIC, expected HTP"):
            config.set_mode(mode)
    with pytest.raises(ValueError, match="found 'speed', expected one of weight_sharing"):
        config.set_mode("speed")
    assert CompilerModes.list_options() == ["weight_sharing"]
    assert config == CompileConfig(backend="AIC")


# --- data formats -------------------------------------------------------------------------------------------

FORMATS = {
    "graphs": [
        {
            "graph_name": "one",
            "tensors": [
                {"tensor_name": "past.0", "dataFormat": "QNN_TENSOR_DATA_FORMAT_MX"},
                {"tensor_name": "ids", "dataFormat": "QNN_TENSOR_DATA_FORMAT_DENSE"},
            ],
        },
        {
            "graph_name": "two",
            "tensors": [{"tensor_name": "past.0", "dataFormat": "QNN_TENSOR_DATA_FORMAT_MX"}],
        },
    ]
}


def test_mx_formats_are_entries_of_a_custom_io_file(tmp_path):
    file = tmp_path / "formats.json"
    file.write_text(json.dumps(FORMATS))
    for form in (FORMATS, str(file)):
        entries = extension_json.mx_entries(form)
        assert entries == [{"IOName": "past.0", "Precision": "mxint8"}]
        options = resolve({"custom_io_list_file": entries}, options_path=None, model_is_container=False)
        assert [(entry.name, entry.precision) for entry in options.compile.custom_io_list_file] == [
            ("past.0", "mxint8")
        ]


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"graphs": {}},
        {"graphs": [1]},
        {"graphs": [{"tensors": "x"}]},
        {"graphs": [{"tensors": [1]}]},
        {"graphs": [{"tensors": [{"tensor_name": ""}]}]},
        {"graphs": [{"tensors": [{"tensor_name": "x", "dataFormat": "FP4"}]}]},
        {"graphs": [{"tensors": [{"tensor_name": "x"}]}]},
    ],
)
def test_other_data_formats_are_refused(content):
    with pytest.raises(OptionError, match="data_format_config: "):
        extension_json.mx_entries(content)
