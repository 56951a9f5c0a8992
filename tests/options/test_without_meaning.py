"""Options that have no effect: keys of files, and flags with any value."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from qaic.options import resolve
from qaic.options.argv import read_argv
from qaic.options.codecs.scalars import Enum
from qaic.options.names import nearest
from qaic.options.table import SPECS


def resolved(*argv, **options):
    return resolve(options, options_path=None, model_is_container=False, flags=read_argv(argv))


# --- keys ------------------------------------------------------------------------------------------

#: Option -> content with a place for another key in each of its objects, and the known keys of each.
FILES = {
    "network_specialization_config": [
        (lambda more: {"specializations": [{"symbols": {"s": 1}}], **more}, ["specializations"]),
        (lambda more: {"specializations": [{"name": "A", "symbols": {"s": 1}, **more}]}, ["name", "symbols"]),
    ],
    "custom_io_list_file": [
        (lambda more: [{"IOName": "x", "Precision": "float16", **more}], ["IOName", "Precision", "Layout"])
    ],
    "node_precision_info_file": [
        (lambda more: {"FP16NodeInstanceNames": ["a"], **more}, ["FP16NodeInstanceNames"])
    ],
    "mdp_load_partition_config": [
        (lambda more: partitions(top=more), ["connections", "partitions"]),
        (lambda more: partitions(partition=more), ["name", "devices", "nodeList"]),
        (lambda more: partitions(device=more), ["deviceId", "numCores"]),
        (lambda more: partitions(connection=more), ["devices", "type"]),
    ],
}
CASES = [(option, *place) for option, places in FILES.items() for place in places]


def partitions(top=(), partition=(), device=(), connection=()):
    first = {"name": "P0", "devices": [{"deviceId": 0, **dict(device)}], "nodeList": ["n"], **dict(partition)}
    second = {"name": "P1", "devices": [{"deviceId": 1}]}
    joined = {"devices": [0, 1], "type": "p2p", **dict(connection)}
    return {"connections": [joined], "partitions": [first, second], **dict(top)}


@pytest.mark.parametrize(("option", "content", "known"), CASES)
@given(
    key=st.text("abcdefgh_XYZ", min_size=1, max_size=12), value=st.one_of(st.integers(0, 9), st.booleans())
)
def test_unknown_keys_are_warnings_and_change_nothing(option, content, known, key, value):
    if key in {*known, "enableFP32Bias"}:
        return
    plain, extended = resolved(**{option: content({})}), resolved(**{option: content({key: value})})
    assert extended.set_compile == plain.set_compile
    (text,) = set(extended.warnings) - set(plain.warnings)
    assert text.startswith(f"{option}: ")
    assert f"the key {key!r} is not known and is ignored" in text


@pytest.mark.parametrize(("option", "content", "known"), CASES)
def test_the_nearest_known_key_is_named_and_so_is_the_file(tmp_path, option, content, known):
    meant = known[-1]
    written = content({meant[:-1] + "_": 1})
    path = tmp_path / "given"
    path.write_text(
        yaml.safe_dump(written)
        if option in {"custom_io_list_file", "node_precision_info_file"}
        else json.dumps(written)
    )
    found = resolved(**{option: path})
    (text,) = [text for text in found.warnings if "not known" in text]
    assert text.startswith(f"{option}: {path}: ")
    assert text.endswith(f"the key {meant[:-1] + '_'!r} is not known and is ignored; did you mean {meant}?")
    assert found.set_compile == resolved(**{option: content({})}).set_compile


def test_a_switch_of_the_vendors_node_precision_files_is_known(tmp_path):
    path = tmp_path / "nodes.yaml"
    for text in ("enableFP32Bias: true\n", "FP32NodeInstanceNames: [a]\nenableFP32Bias: false\n"):
        path.write_text(text)
        (warning,) = resolved(node_precision_info_file=path).warnings
        assert "the key enableFP32Bias has no effect" in warning


# --- flags -----------------------------------------------------------------------------------------

#: Flags that have no effect without other flags.
ALONE = [
    "quantization_schema_activations",
    "quantization_schema_constants",
    "quantization_calibration",
    "num_histogram_bins",
    "quantization_precision",
    "quantization_precision_bias",
    "enable_rowwise",
    "enable_channelwise",
    "percentile_calibration_value",
    "allow_profile_mismatch",
    "write_output_start_iter",
    "write_output_num_samples",
    "aic_profiling_num_samples",
    "aic_profiling_start_iter",
    "ddr_stats",
    "allow_mxint8_mdp_io",
]


@pytest.mark.parametrize("name", ALONE)
def test_a_flag_that_does_nothing_is_named_at_any_value(name):
    spec = next(spec for spec in SPECS if spec.name == name)
    if isinstance(spec.codec, Enum):
        values = [word for word in spec.codec.values if word.lower() != "none"]
    else:
        values = ["true"] if spec.default is False else list(spec.codec.to_texts(spec.default))
    level = ["-stats-level=0"] if name == "ddr_stats" else []
    for value in values:
        warnings = resolved(*level, f"-{spec.flag.text}={value}").warnings
        assert any(f"-{spec.flag.text}" in text for text in warnings), (value, warnings)
    # Options that were not set cause no warning, and a switch that is off has no effect.
    assert not resolved(*level).warnings
    if spec.default is False:
        assert not resolved(*level, f"-{spec.flag.text}=false").warnings


# --- hints -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "names", "found"),
    [
        ("bound-random", ["unbound-random"], None),
        ("unbound_random", ["bound_random"], None),
        ("enable-io", ["disable-io"], None),
        ("combine-inputs", ["no-combine-inputs"], None),
        ("bound-random", ["unbound-random", "bound-randoms"], "bound-randoms"),
        ("-aic-num-core", ["aic_num_cores", "aic_pmu_recipe"], "aic_num_cores"),
    ],
)
def test_a_hint_is_never_the_opposite(key, names, found):
    assert nearest(key, names) == found
