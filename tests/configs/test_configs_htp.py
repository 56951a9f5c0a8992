"""Configurations of other back ends: kept and written unchanged, without additions."""

import json

import pytest
from pydantic import ValidationError

from qaic.configs import (
    CompileConfig,
    CompilerModeSetters,
    HtpContextConfig,
    HtpDeviceConfig,
    HtpGraphConfig,
    HtpGroupContextConfig,
    HtpMcpGraphConfig,
    HtpMemoryConfig,
    OpPackageIdentifier,
    htp,
    htp_mcp,
    modes,
)
from qaic.errors import OptionError

FILE = {
    "context": [{"weight_sharing_enabled": True}],
    "graphs": [{"graph_names": ["a", "b"], "O": 3, "vtcm_mb": 8}, {"graph_names": ["c"], "dlbc": 1}],
    "devices": [{"device_id": 0, "soc_model": 43, "cores": [{"core_id": 0}]}],
    "memory": {"mem_type": "shared_buffer"},
    "groupContext": {"share_resources": True},
    "unknown": {"kept": [1]},
}


def extensions(config):
    return config.model_dump(context={"backend_extensions": True})


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "htp.json"
    path.write_text(json.dumps(FILE))
    return path


def test_classes_keep_what_they_are_given():
    config = HtpGraphConfig(name="graph_A", optimization_type=3)
    assert (config.name, config.optimization_type) == ("graph_A", 3)
    assert config.as_given() == {"name": "graph_A", "optimization_type": 3}
    assert HtpGraphConfig(self=1, data=2).as_given() == {"self": 1, "data": 2}
    assert OpPackageIdentifier(package_path="x.so").as_given() == {"package_path": "x.so"}


def test_documented_construction():
    config = CompileConfig(
        backend="HTP",
        soc_details="chipset:SM8550",
        graph_custom_configs=[HtpGraphConfig(name="graph_A", optimization_type=3)],
    )
    assert extensions(config) == {"graphs": [{"graph_names": ["graph_A"], "O": 3}]}
    assert isinstance(config.graph_custom_configs[0], HtpGraphConfig)


def test_nothing_set_writes_nothing():
    for backend in ("HTP", "HTP_MCP", "LPAI"):
        assert extensions(CompileConfig(backend=backend)) == {}


def test_sections_become_configurations(file):
    config = CompileConfig.from_backend_extensions("HTP", file, debug=True)
    assert config.debug
    assert config.context_custom_configs == [HtpContextConfig(weight_sharing_enabled=True)]
    assert config.graph_custom_configs == [
        HtpGraphConfig(name="a", optimization_type=3, vtcm_size_in_mb=8),
        HtpGraphConfig(name="b", optimization_type=3, vtcm_size_in_mb=8),
        HtpGraphConfig(name="c", dlbc=1),
    ]
    assert config.device_custom_configs == [
        HtpDeviceConfig(device_id=0, soc_model=43, cores=[{"core_id": 0}])
    ]
    assert config.memory_custom_config == HtpMemoryConfig(mem_type="shared_buffer")
    assert config.group_context_config == HtpGroupContextConfig(share_resources=True)


def test_a_file_comes_back_as_it_was(file, tmp_path):
    config = CompileConfig.from_backend_extensions("HTP", file)
    assert extensions(config) == FILE
    again = tmp_path / "again.json"
    again.write_text(config.to_backend_extension_json())
    assert CompileConfig.from_backend_extensions("HTP", again) == config


def test_an_older_context_is_one_object(tmp_path):
    path = tmp_path / "old.json"
    path.write_text('{"context": {"weight_sharing_enabled": true}}')
    config = CompileConfig.from_backend_extensions("HTP", path)
    assert config.context_custom_configs == [HtpContextConfig(weight_sharing_enabled=True)]


@pytest.mark.parametrize("section", ["context", "graphs", "devices", "memory", "groupContext"])
@pytest.mark.parametrize("value", [1, "x", [1], None])
def test_sections_of_another_kind_are_refused(tmp_path, section, value):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({section: value}))
    with pytest.raises(OptionError, match=f"section '{section}'"):
        CompileConfig.from_backend_extensions("HTP", path)


def test_overwritten_fields_warn(file, caplog):
    config = CompileConfig(backend="HTP", memory_custom_config=HtpMemoryConfig(mem_type="x"))
    config.populate_from_backend_extensions(file)
    assert "overwrites memory_custom_config" in caplog.text


def test_passing_through(file, caplog):
    config = CompileConfig.from_backend_extensions("HTP", file, passthrough=True)
    assert config.graph_custom_configs is None
    assert extensions(config) == FILE
    assert "passed through" in caplog.text


@pytest.mark.parametrize("backend", ["HTP_MCP", "LPAI", "AIC"])
def test_files_are_for_htp(file, backend):
    with pytest.raises(ValueError, match=f"found the backend {backend}, expected HTP"):
        CompileConfig.from_backend_extensions(backend, file)


def test_mappings_become_the_class_of_the_back_end():
    assert CompileConfig(backend="HTP", graph_custom_configs=[{"name": "a"}]).graph_custom_configs == [
        HtpGraphConfig(name="a")
    ]
    config = CompileConfig(backend="HTP_MCP", graph_custom_configs=[{"name": "a"}])
    assert config.graph_custom_configs == [HtpMcpGraphConfig(name="a")]
    with pytest.raises(ValidationError):
        CompileConfig(backend="HTP", graph_custom_configs=["a"])


def test_graphs_without_a_name_stay_apart():
    graphs = [HtpGraphConfig(dlbc=1), HtpGraphConfig(dlbc=1), HtpGraphConfig(name="a", dlbc=1)]
    written = htp.graphs_to_json(graphs)
    assert written == [{"dlbc": 1}, {"dlbc": 1}, {"graph_names": ["a"], "dlbc": 1}]
    assert htp.graphs_from_json(written, HtpGraphConfig) == graphs


def test_listings(capsys):
    htp.list_options()
    htp_mcp.list_options()
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 8
    assert shown[1] == "HtpGraphConfig: section 'graphs', any options"


# --- the mode -----------------------------------------------------------------------------------------------


def test_weight_sharing_sets_graphs_device_and_context():
    config = CompileConfig(backend="HTP", soc_details="chipset:SM8550;dsp_arch:v73;soc_model:43;cores:2")
    assert config.set_mode("weight_sharing", graph_names=["a", "b"], vtcm_size_in_mb=8, fp16=True) is config
    assert extensions(config) == {
        "context": [{"weight_sharing_enabled": True}],
        "graphs": [{"graph_names": ["a", "b"], "vtcm_mb": 8, "fp16_relaxed_precision": 1}],
        "devices": [{"soc_model": 43, "dsp_arch": "v73", "cores": [{"core_id": 0}, {"core_id": 1}]}],
    }
    assert not config.ensure_graphs


def test_keywords_win_and_other_settings_stay():
    config = CompileConfig(
        backend="HTP",
        soc_details="dsp_arch:v73;soc_model:43",
        context_custom_configs=[{"extended_udma": True}],
        device_custom_configs=[{"device_id": 1}],
    )
    CompilerModeSetters.set_weight_sharing(config, soc_model=57, dsp_arch="v75", hvx_threads=4)
    assert extensions(config) == {
        "context": [{"extended_udma": True, "weight_sharing_enabled": True}],
        "graphs": [{"hvx_threads": 4}],
        "devices": [{"device_id": 1, "soc_model": 57, "dsp_arch": "v75"}],
    }
    assert config.ensure_graphs


def test_graphs_that_are_there_keep_their_options():
    graphs = [{"name": "a", "optimization_type": 3}, {"name": "b"}]
    for names, expected in (
        (None, [{"graph_names": ["a"], "O": 3, "hvx_threads": 4}, {"graph_names": ["b"], "hvx_threads": 4}]),
        (
            ["b", "c"],
            [{"graph_names": ["a"], "O": 3}, {"graph_names": ["b", "c"], "hvx_threads": 4}],
        ),
    ):
        config = CompileConfig(backend="HTP", graph_custom_configs=graphs)
        config.set_mode("weight_sharing", graph_names=names, soc_model=43, dsp_arch="v73", hvx_threads=4)
        assert extensions(config)["graphs"] == expected
        assert not config.ensure_graphs


@pytest.mark.parametrize(
    ("details", "keywords", "missing"),
    [
        (None, {}, "soc_model and dsp_arch"),
        ("chipset:SM8550", {}, "soc_model and dsp_arch"),
        ("dsp_arch:v73", {}, "soc_model"),
        (None, {"soc_model": 43}, "dsp_arch"),
    ],
)
def test_a_target_is_not_guessed(details, keywords, missing):
    config = CompileConfig(backend="HTP", soc_details=details)
    with pytest.raises(OptionError, match=f"; {missing} is not given") as caught:
        config.set_mode("weight_sharing", **keywords)
    assert caught.value.code == "option.soc_unknown"
    assert extensions(config) == {}


def test_wrong_keywords_of_a_mode_are_type_errors():
    with pytest.raises(TypeError, match="graph_name"):
        CompileConfig(backend="HTP").set_mode("weight_sharing", graph_name=["a"])


# --- soc_details --------------------------------------------------------------------------------------------


def test_soc_details_have_parts():
    assert modes.parse_soc_details("chipset:SM8550;dsp_arch:v73;soc_model:43;cores:2") == (
        modes.SocTarget("SM8550", "v73", 43, 2),
    )
    assert modes.parse_soc_details("dsp_arch:v73;soc_model:43|dsp_arch:v75") == (
        modes.SocTarget(dsp_arch="v73", soc_model=43),
        modes.SocTarget(dsp_arch="v75"),
    )
    assert modes.parse_soc_details("soc_model:43|57") == (
        modes.SocTarget(soc_model=43),
        modes.SocTarget(soc_model=57),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SM8550",
        "chip:SM8550",
        "chipset:",
        "dsp_arch:73",
        "soc_model:x",
        "soc_model:-1",
        "cores:1;cores:2",
        "|",
    ],
)
def test_wrong_soc_details_are_refused(text):
    with pytest.raises(ValidationError, match=r"found|twice"):
        CompileConfig(backend="HTP", soc_details=text)


def test_device_configurations_override_soc_details(caplog):
    CompileConfig(backend="HTP", device_custom_configs=[{"soc_model": 43}], soc_details="soc_model:57")
    assert "overridden by device_custom_configs" in caplog.text
