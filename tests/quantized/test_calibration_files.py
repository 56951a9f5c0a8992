"""Profile files, encodings and input lists: their meaning, and errors about invalid files."""

import hashlib
import json
import logging
import os

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import qaic
from calibration_models import convolutional, lowered, samples_of
from qaic.compiler import driver
from qaic.compiler.calibration import collector
from qaic.compiler.calibration.glow_profile import entry_keys, read_profile
from qaic.errors import OptionError
from qaic.options import resolve
from session_models import model, save

HEAD = "---\nGlowToolsVersion: '2021'\n...\n---\nGraphPreLowerHash: 0x00000000000000ab\n...\n---\n"
KEYS = {"x": "x:0", "c": "conv_1:0", "r": "r:0", "g": "A1pool:0", "f": "f:0", "y": "y:0"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / "cache"))


def dumped(tmp_path, built, name="p.yaml", **options):
    path = tmp_path / name
    resolved = resolve({"dump_profile": path, **options}, options_path=None, model_is_container=False)
    assert driver.write_side_files(built, resolved.compile) == [path]
    return path


def entries(keys, low=-1, high=1):
    return "".join(
        f"- NodeOutputName: '{key}'\n  Min: {low}\n  Max: {high}\n  Histogram: [ 1, 2 ]\n" for key in keys
    )


def loaded(tmp_path, text, built=None, **options):
    path = tmp_path / "given.yaml"
    path.write_text(text)
    built = convolutional() if built is None else built
    return lowered(built, load_profile=path, **options).profile


def test_a_dump_is_loaded_as_what_was_measured(tmp_path):
    built, samples = convolutional(), samples_of(convolutional(), 4)
    path = dumped(tmp_path, built, calibration_data=samples)
    measured = lowered(
        built, convert_to_quantize=True, calibration_data=samples, quantization_calibration="MSE"
    ).profile
    found = lowered(built, load_profile=path).profile
    assert found.tensors == measured.tensors
    keys = [line.split("'")[1] for line in path.read_text().splitlines() if "NodeOutputName" in line]
    assert keys == list(KEYS.values())


@pytest.mark.parametrize("calibration", ["None", "MSE"])
def test_a_loaded_profile_quantizes_like_the_measurement_itself(tmp_path, calibration):
    path, samples = save(tmp_path, convolutional()), samples_of(convolutional(), 4)
    profile = dumped(tmp_path, path, calibration_data=samples)
    ways = (
        {"load_profile": profile},
        {"external_quantization_file": profile},
        {"convert_to_quantize": True, "calibration_data": samples},
    )
    results = []
    for options in ways:
        with qaic.Session(path, quantization_calibration=calibration, **options) as session:
            results.append(session.run(samples[0])["y"])
    with qaic.Session(path) as plain:
        exact = plain.run(samples[0])["y"]
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])
    assert not np.array_equal(results[0], exact)
    assert np.abs(results[0] - exact).max() < 0.1 * np.abs(exact).max()


def test_a_session_dumps_and_goes_on_with_a_float_program(tmp_path):
    path = save(tmp_path, convolutional())
    [sample] = samples_of(convolutional(), 1)
    with qaic.Session(path) as plain:
        expected = plain.run(sample)["y"]
    for _ in range(2):
        with qaic.Session(
            path, dump_profile=tmp_path / "out" / "p.yaml", calibration_data=[sample]
        ) as session:
            assert np.array_equal(session.run(sample)["y"], expected)
        # The profile is also written if the container is in the cache.
        assert read_profile((tmp_path / "out" / "p.yaml").read_bytes(), "p").entries
        (tmp_path / "out" / "p.yaml").unlink()


def test_a_failed_dump_leaves_the_old_file(tmp_path):
    path = dumped(tmp_path, convolutional(), calibration_data=samples_of(convolutional(), 1))
    before = path.read_bytes()
    with pytest.raises(OptionError):
        dumped(tmp_path, convolutional(), calibration_data=[{}])
    assert path.read_bytes() == before
    assert [found for found in tmp_path.iterdir() if found.name != "cache"] == [path]


def test_a_profile_of_another_model_is_refused(tmp_path, caplog):
    built = convolutional()
    path = dumped(tmp_path, built, calibration_data=samples_of(built, 1))
    other = convolutional(seed=5)
    with pytest.raises(OptionError, match=r"another model.*graph hash 0x[0-9a-f]{16}.*expected 0x") as caught:
        lowered(other, load_profile=path)
    assert caught.value.code == "option.load_profile"
    assert "allow_profile_mismatch" in caught.value.hints[0]
    found = lowered(other, load_profile=path, allow_profile_mismatch=True).profile
    assert found.tensors == lowered(built, load_profile=path).profile.tensors
    assert "belongs to another graph" in caplog.text


def test_a_profile_of_another_compiler_is_matched_by_names(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "qaic.compiler"):
        found = loaded(tmp_path, HEAD + entries(KEYS.values()))
    assert found.tensors.keys() == KEYS.keys()
    assert "another compiler wrote" in caplog.text
    assert "GlowToolsVersion 2021" in caplog.text
    assert "no entries" not in caplog.text


@given(st.data())
def test_numbered_names_of_another_compiler_are_those_of_the_last_part(data):
    """Keys ``X__N`` belong to node X; the highest number is that of its result. Other names are ignored."""
    graph = convolutional().graph
    own = set(entry_keys(graph).values())
    wanted, text = {}, HEAD
    for number, (name, key) in enumerate(KEYS.items()):
        parts = data.draw(st.lists(st.integers(1, 40), max_size=4, unique=True))
        node, _, position = key.partition(":")
        keys = [f"{node}__{part}:{position}" for part in parts]
        if data.draw(st.booleans()):
            keys.append(key)
        keys = [other for other in keys if other == key or other not in own]
        for place, other in enumerate(data.draw(st.permutations(keys))):
            text += entries([other], high=100 * (number + 1) + place)
            highest = max((part for part in parts if f"{node}__{part}:{position}" in keys), default=None)
            if other == (key if highest is None else f"{node}__{highest}:{position}"):
                wanted[name] = 100 * (number + 1) + place
    text += entries(["conv_bias__15:0", "zero__13:0"])
    found = read_profile(text.encode(), "p.yaml").bind(graph).tensors
    assert {name: tensor.maximum for name, tensor in found.items()} == wanted


@pytest.mark.parametrize(
    "keys", [("n:0", "n__1:0"), ("p/b", "p/b__127"), ("p/b:0", "p/b__127:0"), ("p_b", "p_b__127")]
)
def test_a_number_that_is_a_tensors_own_is_not_another_tensors(tmp_path, keys):
    """Keys are names of nodes, names of tensors with the exporters' numbers, or these names in legal form."""
    built = model(
        [
            helper.make_node("Relu", ["x"], ["p/b"], name="n"),
            helper.make_node("Relu", ["p/b"], ["p/b__127"], name="n__1"),
        ],
        [("x", "float32", [2])],
        [("p/b__127", "float32", [2])],
    )
    plain, numbered = keys
    found = loaded(tmp_path, HEAD + entries([numbered], high=7) + entries([plain], high=5), built)
    assert (found.tensors["p/b"].maximum, found.tensors["p/b__127"].maximum) == (5, 7)


def test_the_hash_covers_shapes_and_not_names(tmp_path):
    built = convolutional()
    path = dumped(tmp_path, built, calibration_data=samples_of(built, 1))
    renamed = convolutional()
    renamed.graph.name = "other"
    renamed.graph.node[1].name = "renamed"
    with pytest.raises(OptionError, match="graph hash"):
        lowered(convolutional(size=8), load_profile=path)
    assert lowered(renamed, load_profile=path).profile.tensors.keys() == {"x", "c", "g", "f", "y"}


def test_a_missing_entry_keeps_nodes_in_float_with_one_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "qaic.compiler"):
        found = loaded(tmp_path, HEAD + entries(["x:0", "c"]), allow_profile_mismatch=True)
    assert found.tensors.keys() == {"x", "c"}
    [warning] = [record for record in caplog.records if "no entries" in record.message]
    assert "4 of 6 tensors" in warning.message


def test_a_profile_without_any_entry_of_the_model_is_refused(tmp_path):
    with pytest.raises(OptionError, match="no entry for any of the 6 tensors"):
        loaded(tmp_path, HEAD + entries(["absent:0"]), allow_profile_mismatch=True)


@pytest.mark.parametrize("key", ["conv/1:0", "c", "c:0", "conv_1:0"])
def test_entries_are_found_by_each_of_their_names(tmp_path, key):
    found = loaded(tmp_path, HEAD + entries([key, "x"]), allow_profile_mismatch=True)
    assert ("c" in found.tensors) is (key != "conv/1:0")


def test_names_of_tensors_win_over_names_of_nodes_in_files_of_others(tmp_path):
    built = model(
        [helper.make_node("Relu", ["x"], ["b"], name="a"), helper.make_node("Relu", ["b"], ["a"], name="n")],
        [("x", "float32", [2])],
        [("a", "float32", [2])],
    )
    text = HEAD + entries(["a:0"], high=5) + entries(["n:0"], high=7)
    found = loaded(tmp_path, text, built, allow_profile_mismatch=True)
    assert found.tensors["a"].maximum == 5
    ours = text.replace("'2021'", "'openqaic 1'")
    found = loaded(tmp_path, ours, built, allow_profile_mismatch=True)
    assert (found.tensors["b"].maximum, found.tensors["a"].maximum) == (5, 7)


def test_the_older_generation_fixes_parameters(tmp_path, caplog):
    text = "".join(f"- NodeOutputName: {key}\n  Scale: 0.5\n  Offset: -3\n" for key in KEYS)
    found = loaded(tmp_path, text)
    tensor = found.tensors["c"]
    assert tensor.is_fixed
    assert (tensor.scale, tensor.offset) == (0.5, -3)
    assert (tensor.minimum, tensor.maximum) == (-62.5, 65)
    assert "does not name its model" in caplog.text


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("GlowToolsVersion: a\nGlowToolsVersion: b\n", 2, "GlowToolsVersion: found the key a second time"),
        ("Other: a\n", 1, "Other: found an unknown key"),
        ("GraphPreLowerHash: zebra\n", 1, "GraphPreLowerHash: found 'zebra'"),
        ("GraphPreLowerHash: 0x10000000000000000\n", 1, "GraphPreLowerHash"),
        (
            HEAD + "- Min: 1\n  Max: 2\n  Histogram: [ 1 ]\n",
            8,
            "NodeOutputName: found an entry without a name",
        ),
        (HEAD + "- NodeOutputName: a\n  Min: 2\n  Max: 1\n  Histogram: [ 1 ]\n", 8, "Min 2.0 above Max 1.0"),
        (HEAD + "- NodeOutputName: a\n  Min: 2\n  Max: x\n  Histogram: [ 1 ]\n", 10, "Max: found 'x'"),
        (HEAD + "- NodeOutputName: a\n  Min: .nan\n", 9, "Min: found '.nan'"),
        (HEAD + "- NodeOutputName: a\n  Min: 1e999\n  Max: 1e999\n  Histogram: []\n", 8, "beyond float32"),
        (HEAD + "- NodeOutputName: a\n  Min: 1\n  Max: 2\n", 8, "a: found no Histogram"),
        (
            HEAD + "- NodeOutputName: a\n  Min: 1\n  Max: 2\n  Histogram: 3\n",
            11,
            "Histogram: found one value",
        ),
        (HEAD + "- NodeOutputName: a\n  Min: 1\n  Max: 2\n  Histogram: [ 1, b ]\n", 8, "in Histogram"),
        (HEAD + "- NodeOutputName: a\n  Min: 1\n  Max: 2\n  Histogram: [ 1, -1 ]\n", 8, "invalid count"),
        (HEAD + "- NodeOutputName: a\n  Kind: 1\n", 9, "Kind: found an unknown key"),
        (HEAD + "- NodeOutputName: a\n  Scale: 1\n  Offset: 300\n", 8, "offset 300"),
        (HEAD + "- NodeOutputName: a\n  Scale: -1\n  Offset: 3\n", 8, "Scale -1"),
        (HEAD + "- NodeOutputName: a\n  Scale: 1\n", 8, "no Offset"),
        (HEAD + "- NodeOutputName: a\n  Scale: 1\n  Offset: 1\n  Min: 1\n", 8, "Min beside Scale and Offset"),
        (HEAD + entries(["a", "a"]), 12, "'a' a second time"),
        # The reader marks histograms with a tag, which a file may also contain.
        (HEAD + entries(["a"]) + "  Histogram: !histogram 0\n", 12, "Histogram: found the key a second time"),
        (HEAD + entries(["a"]) + "- Histogram: !histogram 0\n", 12, "Histogram: found one value"),
        (HEAD + "- Histogram: !histogram 7\n", 8, "Histogram: found one value"),
        (HEAD + "- [ 1, 2 ]\n", 8, "found a list"),
        (HEAD + "- NodeOutputName: [ unclosed\n", 9, "text"),
        ("a: &x [1]\nb: *x\n", 1, "unknown key"),
    ],
)
def test_a_wrong_profile_is_refused_with_line_and_key(tmp_path, text, line, message):
    with pytest.raises(OptionError, match=f"given.yaml, line {line}: .*{message}") as caught:
        loaded(tmp_path, text)
    assert caught.value.code == "profile.malformed"


def test_aliases_cannot_make_a_small_file_large(tmp_path):
    bomb = "- &a { NodeOutputName: a, Min: 0, Max: 1, Histogram: &h [ " + "1, " * 1000 + "1 ] }\n"
    with pytest.raises(OptionError, match="an alias"):
        loaded(tmp_path, HEAD + bomb + "- { NodeOutputName: b, Min: 0, Max: 1, Histogram: *h }\n")


def test_histograms_as_tools_write_them_bypass_the_yaml_parser(tmp_path, monkeypatch):
    parsed, parse = [], yaml.parse
    monkeypatch.setattr(yaml, "parse", lambda text, **options: parsed.append(text) or parse(text, **options))
    path = dumped(tmp_path, convolutional(), calibration_data=samples_of(convolutional(), 1))
    assert len(read_profile(path.read_bytes(), "p").entries) == len(KEYS)
    wrapped = HEAD + "- NodeOutputName:  'n:0'\n  Min:             -1\n  Max:             1\n"
    wrapped += "  Histogram:       [ 1, 2, 3,\n                     4 ]\n...\n"
    blocks = HEAD + "- Histogram:\n  - 1\n  - 2.5\n  Max: 1\n  Min: -1\n  NodeOutputName: n:0\n"
    for text, counts in ((wrapped, [1, 2, 3, 4]), (blocks, [1, 2.5])):
        for breaks in ("\n", "\r\n"):
            found = read_profile(text.replace("\n", breaks).encode(), "p")
            assert found.entries["n:0"].histogram.tolist() == counts
    assert len(parsed) == 5
    assert not any("[" in text or "- 2.5" in text for text in parsed)


def test_a_profile_that_changes_while_compiling_is_refused(tmp_path):
    path = dumped(tmp_path, convolutional(), calibration_data=samples_of(convolutional(), 1))
    resolved = resolve({"load_profile": path}, options_path=None, model_is_container=False)
    path.write_text("---\n")
    with pytest.raises(OptionError, match="has changed since the options"):
        driver.compile_model(convolutional().SerializeToString(), resolved.compile, resolved.set_compile)


# --- encodings -----------------------------------------------------------------------------------------


def encodings(tmp_path, activations=None, parameters=None, built=None, text=None):
    path = tmp_path / "encodings.json"
    held = {"activation_encodings": activations or {}, "param_encodings": parameters or {}}
    path.write_text(json.dumps(held) if text is None else text)
    return lowered(convolutional() if built is None else built, external_quantization_file=path).profile


def encoding(scale, offset, /, bits=8, **changes):
    low, high = scale * offset, scale * (offset + 2**bits - 1)
    return {
        "bitwidth": bits,
        "dtype": "int",
        "is_symmetric": "False",
        "min": low,
        "max": high,
        "scale": scale,
        "offset": offset,
    } | changes


def test_encodings_become_signed_parameters(tmp_path):
    profile = encodings(
        tmp_path,
        {"x": [encoding(0.5, -100)], "c": [encoding(0.25, 0)], "y": [encoding(0.001, -32768, bits=16)]},
        {"w": [encoding(0.1 * (1 + at), -128) for at in range(8)]},
    )
    tensor = profile.tensors["x"]
    assert (tensor.scale, tensor.offset, tensor.bits) == (0.5, -28, 8)
    # The same numbers as in the other tools: 0.5 * (0 - 100) to 0.5 * (255 - 100).
    assert (tensor.minimum, tensor.maximum) == (-50, 77.5)
    assert profile.tensors["c"].offset == -128
    assert (profile.tensors["y"].offset, profile.tensors["y"].bits) == (0, 16)
    weights = profile.tensors["w"]
    np.testing.assert_allclose(weights.channel_scales, 0.1 * np.arange(1, 9), rtol=1e-6)
    assert not weights.channel_offsets.any()
    assert weights.is_fixed


def test_symmetric_encodings_may_count_from_below_zero(tmp_path):
    item = encoding(0.5, 0, min=-64.0, max=63.5)
    assert encodings(tmp_path, {"x": [item]}).tensors["x"].offset == 0


def test_encodings_of_floats_name_precisions(tmp_path):
    profile = encodings(
        tmp_path,
        {
            "x": [encoding(0.5, -100)],
            "c": [{"bitwidth": 16, "dtype": "float"}],
            "y": [{"bitwidth": 32, "dtype": "float"}],
        },
    )
    assert profile.precisions == {"c": "fp16", "y": "fp32"}
    assert profile.tensors.keys() == {"x"}


def test_encodings_of_floats_decide_about_nodes(tmp_path):
    path = tmp_path / "encodings.json"
    held = {"x": [encoding(0.5, -100)], "c": [{"bitwidth": 16, "dtype": "float"}]}
    path.write_text(json.dumps({"activation_encodings": held}))

    def rounds(**options):
        graph = lowered(convolutional(), external_quantization_file=path, **options).model.graph
        casts = {node.input[0] for node in graph.node if node.op_type == "Cast"}
        [conv] = [node for node in graph.node if node.op_type == "Conv"]
        return conv.output[0] in casts

    assert rounds()
    assert not rounds(keep_original_precision_for_nodes=["Conv"])


def test_ranges_alone_are_measured_ranges(tmp_path):
    item = {"bitwidth": 8, "min": -1.0, "max": 3.0}
    tensor = encodings(tmp_path, {"x": item}).tensors["x"]
    assert not tensor.is_fixed
    assert (tensor.minimum, tensor.maximum) == (-1, 3)


def test_a_profile_is_an_external_file_too(tmp_path):
    profile = encodings(tmp_path, text=HEAD + entries(KEYS))
    assert profile.tensors.keys() == KEYS.keys()


@pytest.mark.parametrize(
    ("activations", "message"),
    [
        ({"x": []}, r"tensor 'x': found an empty list"),
        ({"x": [3]}, "tensor 'x'"),
        ({"x": [encoding(0.5, -100, bitwidth=7)]}, "bitwidth 7"),
        ({"x": [encoding(0.5, -100, bitwidth=True)]}, "bitwidth True"),
        ({"x": [encoding(0.5, -100, dtype="complex")]}, "dtype 'complex'"),
        ({"x": [encoding(0.5, -100, scale="a")]}, "scale 'a'"),
        ({"x": [encoding(0.5, -100, scale=-0.5)]}, "tensor 'x'"),
        ({"x": [encoding(0.5, -100, offset=0.5)]}, "offset 0.5"),
        ({"x": [encoding(0.5, -300)]}, "offset"),
        ({"x": [encoding(0.5, -100, min=-49.0)]}, "min -49.0 and max 77.5 with scale 0.5 and offset -100"),
        ({"x": [encoding(0.5, -100, min=9.0, max=1.0)]}, "min 9.0 above max 1.0"),
        ({"x": [{"bitwidth": 8}]}, "the keys bitwidth"),
        ({"x": [encoding(0.5, -100), encoding(0.5, -100)]}, "2 encodings"),
        ({"x": [encoding(0.5, -100), encoding(0.5, -100, bits=16)]}, "different types"),
    ],
)
def test_wrong_encodings_are_refused(tmp_path, activations, message):
    with pytest.raises(OptionError, match=message) as caught:
        encodings(tmp_path, activations)
    assert caught.value.code == "option.external_quantization_file"
    assert "encodings.json" in str(caught.value)


def test_one_tensor_with_two_encodings_is_refused(tmp_path):
    text = '{"activation_encodings": {"x": [], "x": []}}'
    with pytest.raises(OptionError, match="the key 'x' occurs twice"):
        encodings(tmp_path, text=text)


@pytest.mark.parametrize("text", ["{", '{"a": 1}', '{"activation_encodings": []}', "{" * 100000])
def test_other_json_is_refused(tmp_path, text):
    with pytest.raises(OptionError, match=r"encodings\.json"):
        encodings(tmp_path, text=text)


# --- input lists ---------------------------------------------------------------------------------------


def two_inputs():
    return model(
        [helper.make_node("Mul", ["a", "b"], ["m"]), helper.make_node("Tanh", ["m"], ["y"])],
        [("a", "float32", [2, 2]), ("b", "float32", [1])],
        [("y", "float32", [2, 2])],
    )


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.arange(4, dtype="<f4").tofile("a0.raw")
    np.full(4, -9, "<f4").tofile("a1.raw")
    np.full(1, 2, "<f4").tofile("b0.raw")
    np.save("b1.npy", np.full(1, 3.0))
    return tmp_path


def listed(folder, text, **options):
    (folder / "list.txt").write_text(text)
    return lowered(
        two_inputs(), convert_to_quantize=True, input_list_file=folder / "list.txt", **options
    ).profile


@pytest.mark.parametrize(
    "text",
    [
        "a0.raw,b0.raw\na1.raw,b1.npy\n",
        "\n# outputs\na0.raw b0.raw\r\n  a1.raw   b1.npy\n",
        "b:=b0.raw, a:=a0.raw\na:=a1.raw b:=b1.npy",
        "\ufeffa0.raw , b0.raw\na1.raw,b1.npy",
    ],
)
def test_an_input_list_names_files_in_order_or_by_input(files, text):
    tensors = listed(files, text).tensors
    assert (tensors["a"].minimum, tensors["a"].maximum) == (-9, 3)
    assert (tensors["b"].minimum, tensors["b"].maximum) == (2, 3)
    assert (tensors["m"].minimum, tensors["m"].maximum) == (-27, 6)


def test_an_archive_gives_the_ranges_of_the_same_samples_in_a_list(files):
    """Arrays have the shapes of the inputs, or one more dimension for samples."""
    expected = listed(files, "a0.raw,b0.raw\na1.raw,b1.npy\n").tensors
    stacked = {
        "a": np.stack([np.arange(4.0), np.full(4, -9.0)]).reshape(2, 2, 2),
        "b": np.array([[2.0], [3.0]]),
    }
    np.savez(files / "samples.npz", **{name: array.astype(np.float32) for name, array in stacked.items()})
    options = {"convert_to_quantize": True, "input_list_file": files / "samples.npz"}
    assert lowered(two_inputs(), **options).profile.tensors == expected
    np.savez(files / "samples.npz", **{name: array[0].astype(np.float32) for name, array in stacked.items()})
    one = lowered(two_inputs(), **options).profile.tensors
    assert one == listed(files, "a0.raw,b0.raw").tensors


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(4), "c": np.zeros(1)}, r"samples.npz: found the unknown input 'c'"),
        ({"a": np.zeros((2, 4)), "b": np.zeros((3, 1))}, r"samples.npz: found input 'a' of shape \[2, 4\]"),
        ({"a": np.zeros(4), "b": np.array([{}])}, r"samples.npz: found a file that cannot be read"),
        (b"no archive", r"samples.npz: found a file that cannot be read"),
    ],
)
def test_a_wrong_archive_is_refused(files, arrays, message):
    if isinstance(arrays, bytes):
        (files / "samples.npz").write_bytes(arrays)
    else:
        np.savez(files / "samples.npz", **arrays)
    with pytest.raises(OptionError, match=message):
        lowered(two_inputs(), convert_to_quantize=True, input_list_file=files / "samples.npz")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a0.raw,b0.raw\na0.raw", r"line 2: found 1 file, expected 2, in the order of the inputs a, b"),
        ("a0.raw,missing.raw", r"line 1: found 'missing.raw' for input 'b'"),
        ("b0.raw,a0.raw", r"line 1: found 4 bytes in 'b0.raw' for input 'a', expected 16 \(float32\) bytes"),
        ("a:=a0.raw,b0.raw", "with and without input names"),
        ("a:=a0.raw,c:=b0.raw", "unknown input 'c'"),
        ("a:=a0.raw", "no file for input 'b'"),
        ("a:=a0.raw,a:=a0.raw,b:=b0.raw", "an input twice"),
        ("a0.raw,,b0.raw", "an empty name"),
        ("a0.raw,.", "regular file"),
        ("a0.raw,list.txt.npy", "list.txt.npy"),
        ("# nothing\n", "no samples"),
        ("a0.raw,bad.npy", "'bad.npy' for input 'b'"),
        ("a0.raw,huge.npy", "'huge.npy' for input 'b'"),
        ("a0.raw,shape.npy", r"list.txt, line 1: .*input 'b' of shape \[2\], expected shape \[1\]"),
        ("a0.raw,object.npy", "object.npy"),
    ],
)
def test_a_wrong_input_list_is_refused_with_line_and_input(files, text, message):
    (files / "bad.npy").write_bytes(b"\x93NUMPY garbage")
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"
    (files / "huge.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    np.save("shape.npy", np.zeros(2, np.float32))
    np.save("object.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(OptionError, match=message):
        listed(files, text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkfifo, "regular file"),
        (
            lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 40),
            f"found {1 << 40} bytes",
        ),
    ],
)
def test_no_file_in_a_list_is_read_without_end(files, make, message):
    make(files / "endless")
    (files / "list.txt").write_text("a0.raw,endless\n")
    with pytest.raises(OptionError, match=message):
        qaic.Session(save(files, two_inputs()), convert_to_quantize=True, input_list_file=files / "list.txt")


# --- the cache -----------------------------------------------------------------------------------------


@pytest.fixture
def runs(monkeypatch):
    """Count the calibrations."""
    counted = []
    original = collector.collect

    def counting(*arguments, **keywords):
        counted.append(1)
        return original(*arguments, **keywords)

    monkeypatch.setattr("qaic.compiler.calibration.load_or_collect.collect", counting)
    return counted


def containers(tmp_path):
    return sorted(path.parent.name for path in (tmp_path / "cache").rglob("programqpc.bin"))


def test_a_second_compile_with_the_same_list_does_not_calibrate_again(files, runs):
    path = save(files, two_inputs())
    (files / "list.txt").write_text("a0.raw,b0.raw\n")
    for _ in range(2):
        qaic.Session(path, convert_to_quantize=True, input_list_file="list.txt")
    assert len(runs) == 1
    np.arange(4, 8, dtype="<f4").tofile("a0.raw")
    qaic.Session(path, convert_to_quantize=True, input_list_file="list.txt")
    assert len(runs) == 2
    assert len(containers(files)) == 2


def test_the_same_names_in_another_folder_are_other_samples(files, runs, monkeypatch):
    path = save(files, two_inputs())
    (files / "list.txt").write_text("a0.raw,b0.raw\n")
    for file in (files / "a0.raw", files / "b0.raw", files / "list.txt"):
        os.utime(file, (1, 1))
    qaic.Session(path, convert_to_quantize=True, input_list_file=files / "list.txt")
    (files / "other").mkdir()
    monkeypatch.chdir(files / "other")
    np.full(4, 77, "<f4").tofile("a0.raw")
    np.full(1, 2, "<f4").tofile("b0.raw")
    qaic.Session(path, convert_to_quantize=True, input_list_file=files / "list.txt")
    assert len(runs) == 2


def test_samples_from_python_differ_by_their_measurements(tmp_path, runs):
    path = save(tmp_path, two_inputs())

    def compiled(scale):
        samples = [{"a": np.full((2, 2), scale, np.float32), "b": np.ones(1, np.float32)}]
        qaic.Session(path, convert_to_quantize=True, calibration_data=iter(samples))

    compiled(1)
    compiled(1)
    assert len(containers(tmp_path)) == 1
    compiled(2)
    assert len(containers(tmp_path)) == 2
    assert len(runs) == 3


def test_samples_that_change_while_compiling_are_refused(files, monkeypatch):
    (files / "list.txt").write_text("a0.raw,b0.raw\n")
    original = collector.collect

    def meddling(*arguments, **keywords):
        found = original(*arguments, **keywords)
        np.zeros(4, "<f4").tofile("a0.raw")
        os.utime("a0.raw", (5, 5))
        return found

    monkeypatch.setattr("qaic.compiler.calibration.load_or_collect.collect", meddling)
    with pytest.raises(qaic.errors.CompileError, match=r"a0\.raw.*another content"):
        qaic.Session(save(files, two_inputs()), convert_to_quantize=True, input_list_file="list.txt")
    assert not containers(files)


def test_containers_of_equal_samples_are_equal(tmp_path, monkeypatch):
    path = save(tmp_path, convolutional())
    digests = set()
    for threads in (1, 3):
        monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / f"cache{threads}"))
        out = tmp_path / f"out{threads}"
        qaic.Session(
            path,
            convert_to_quantize=True,
            calibration_data=samples_of(convolutional(), 5),
            quantization_calibration="Percentile",
            percentile_calibration_value=99.0,
            profiling_threads=threads,
            output_dir=out,
        )
        digests.add(hashlib.sha256((out / "programqpc.bin").read_bytes()).hexdigest())
    assert len(digests) == 1
