"""The same numbers in the three versions of an encodings file give the same program."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import qaic
from lowered_program import lower_program
from qaic.compiler.calibration.encodings import read_external, read_yaml
from qaic.compiler.calibration.load_or_collect import profile_digest
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.frontend.files import onnx_file
from qaic.errors import CompileError, OptionError
from qaic.options import resolve
from qaic.options.table import CompileOptions

WEIGHT = np.random.default_rng(0).standard_normal((3, 2, 1, 1)).astype(np.float32)
BIAS = np.float32([0.1, 0.2, 0.3])


def convolution(op="Conv"):
    """Build y = relu(conv(x, w, b))."""
    value = helper.make_tensor_value_info
    weight = WEIGHT if op == "Conv" else WEIGHT.transpose(1, 0, 2, 3)
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w", "b"], ["c"]), helper.make_node("Relu", ["c"], ["y"])],
        "net",
        [value("x", 1, [1, 2, 4, 4])],
        [value("y", 1, [1, 3, 4, 4])],
        [numpy_helper.from_array(np.ascontiguousarray(weight), "w"), numpy_helper.from_array(BIAS, "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


#: Tensors: kind, bits, scales, and offsets counted from 0; floating-point tensors have no numbers.
scales = st.floats(2**-12, 8, width=32)


@st.composite
def tables(draw):
    """Encodings of the model's tensors: name -> (is constant, bits, [(scale, offset)]), or a float type."""
    made = {}
    for name in ("x", "c", "y"):
        if draw(st.integers(0, 9)) == 0:
            made[name] = (False, draw(st.sampled_from([16, 32])), None)
            continue
        bits = 8
        made[name] = (False, bits, [(draw(scales), -draw(st.integers(0, 2**bits - 1)))])
    channels = draw(st.sampled_from([1, 3]))
    made["w"] = (True, 8, [(draw(scales), -128) for _ in range(channels)])
    if draw(st.booleans()):
        made["b"] = (True, 32, [(draw(scales), -(2**31))])
    made["gone"] = (draw(st.booleans()), 8, [(draw(scales), 0)])
    return made


def oldest(table):
    """Version 0.6.1, which also contains the ends of the range."""
    held = {"version": "0.6.1", "activation_encodings": {}, "param_encodings": {}, "quantizer_args": {}}
    for name, (is_constant, bits, numbers) in table.items():
        section = held["param_encodings" if is_constant else "activation_encodings"]
        if numbers is None:
            section[name] = [{"bitwidth": bits, "dtype": "float"}]
            continue
        section[name] = [
            {
                "bitwidth": bits,
                "dtype": "int",
                "is_symmetric": str(is_constant),
                "scale": scale,
                "offset": offset,
                "min": scale * offset,
                "max": scale * (offset + 2**bits - 1),
            }
            for scale, offset in numbers
        ]
    return held


def middle(table):
    """Version 1.0.0: lists, and lists inside the entries."""
    held = {
        "version": "1.0.0",
        "activation_encodings": [],
        "param_encodings": [],
        "producer": {"name": "aimet"},
    }
    for name, (is_constant, bits, numbers) in table.items():
        entry = {"name": name, "enc_type": "PER_TENSOR", "bw": bits, "dtype": "FLOAT"}
        if numbers is not None:
            entry |= {
                "enc_type": "PER_TENSOR" if len(numbers) == 1 else "PER_CHANNEL",
                "dtype": "INT",
                "is_sym": is_constant,
                "scale": [scale for scale, _ in numbers],
                "offset": [offset for _, offset in numbers],
            }
        held["param_encodings" if is_constant else "activation_encodings"].append(entry)
    return held


def newest(table, signed, axis=0):
    """Version 2.0.0: zero points of QuantizeLinear, signed or unsigned; scalars if there is one number."""
    entries = []
    for name, (_, bits, numbers) in table.items():
        if numbers is None:
            entries.append({"name": name, "output_dtype": f"float{bits}"})
            continue
        is_signed = signed[name]
        low = -(2 ** (bits - 1)) if is_signed else 0
        zeros = [low - offset for _, offset in numbers]
        entry = {
            "name": name,
            "output_dtype": f"{'' if is_signed else 'u'}int{bits}",
            "y_scale": numbers[0][0] if len(numbers) == 1 else [scale for scale, _ in numbers],
        }
        if any(zeros):
            entry["y_zero_point"] = zeros[0] if len(numbers) == 1 else zeros
        if len(numbers) > 1:
            entry["axis"] = axis
        entries.append(entry)
    return {"version": "2.0.0", "encodings": entries}


@settings(max_examples=60)
@given(tables(), st.data())
def test_three_forms_have_one_meaning(table, data):
    graph = convolution().graph
    signed = {name: data.draw(st.booleans()) for name in table}
    profiles = [
        read_external(json.dumps(held).encode(), "file", graph, ["w", "b"])
        for held in (oldest(table), middle(table), newest(table, signed))
    ]
    # The same in YAML, with lists of numbers in one line or in several.
    flow = data.draw(st.sampled_from([None, False]))
    for held, profile in zip((oldest(table), middle(table), newest(table, signed)), profiles, strict=True):
        text = yaml.safe_dump(held, default_flow_style=flow, sort_keys=data.draw(st.booleans()))
        read = read_external(text.encode(), "file.encodings.yaml", graph, ["w", "b"])
        assert profile_digest(read) == profile_digest(profile), text
    first, second, third = profiles
    assert first.tensors.keys() == second.tensors.keys() == third.tensors.keys()
    assert first.precisions == second.precisions == third.precisions
    for name, tensor in first.tensors.items():
        assert second.tensors[name] == tensor
        # Only the newest version contains the axis.
        is_channels = tensor.channel_scales is not None
        assert third.tensors[name].channel_axis == (0 if is_channels else None)
        for key in ("scale", "offset", "bits", "minimum", "maximum"):
            assert getattr(third.tensors[name], key) == getattr(tensor, key)
        if is_channels:
            np.testing.assert_array_equal(third.tensors[name].channel_scales, tensor.channel_scales)
            np.testing.assert_array_equal(third.tensors[name].channel_offsets, tensor.channel_offsets)


@settings(max_examples=8, deadline=None)
@given(table=tables(), data=st.data())
def test_containers_of_the_three_forms_are_one(table, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("forms")
    signed = {name: data.draw(st.booleans()) for name in table}
    contents = set()
    for number, held in enumerate((oldest(table), middle(table), newest(table, signed))):
        path = folder / f"{number}.json"
        path.write_text(json.dumps(held))
        built = qaic.compile(convolution(), external_quantization_file=path, output_dir=folder / str(number))
        digest = qaic.Qpc(built.path).options["external_quantization_file"]
        content = built.path.read_bytes()
        # The container records the file; all other parts are equal.
        assert content.count(digest.encode()) >= 1
        contents.add(content.replace(digest.encode(), b"-" * len(digest)))
    assert len(contents) == 1


def quantized(model, held, tmp_path):
    path = tmp_path / "encodings.json"
    path.write_text(json.dumps(held))
    resolved = resolve({"external_quantization_file": path}, options_path=None, model_is_container=False)
    chosen = resolved.compile
    assert isinstance(chosen, CompileOptions)
    return lower_program(onnx_file.open_bytes(model.SerializeToString()), chosen, Progress("test"))


TABLE = {
    "x": (False, 8, [(0.05, -128)]),
    "c": (False, 8, [(0.1, -128)]),
    "y": (False, 8, [(0.1, 0)]),
    "w": (True, 8, [(0.01, -128), (0.02, -128), (0.03, -128)]),
}
UNSIGNED = dict.fromkeys(TABLE, False)


@pytest.mark.parametrize(
    ("op", "axis"), [("Conv", 0), ("Conv", -4), ("ConvTranspose", 1), ("ConvTranspose", -3)]
)
def test_scales_along_the_output_channels_are_used(op, axis, tmp_path):
    program = quantized(convolution(op), newest(TABLE, UNSIGNED, axis), tmp_path)
    held = [numpy_helper.to_array(tensor) for tensor in program.model.graph.initializer]
    assert any(
        array.shape == (3,) and np.array_equal(array, np.float32([0.01, 0.02, 0.03])) for array in held
    )


@pytest.mark.parametrize(("op", "axis"), [("Conv", 1), ("Conv", -1), ("ConvTranspose", 0)])
def test_scales_along_another_axis_are_refused(op, axis, tmp_path):
    with pytest.raises(CompileError, match=rf"constant 'w': found parameters along axis {axis}") as caught:
        quantized(convolution(op), newest(TABLE, UNSIGNED, axis), tmp_path)
    assert caught.value.code == "compile.quantization_axis"


def of_one(**changes):
    return {
        "name": "x",
        "enc_type": "PER_TENSOR",
        "dtype": "INT",
        "bw": 8,
        "is_sym": False,
        "scale": [0.5],
        "offset": [-100],
    } | changes


def of_two(**changes):
    return {"name": "x", "output_dtype": "uint8", "y_scale": 0.5, "y_zero_point": 100} | changes


@pytest.mark.parametrize(
    ("version", "entry", "message"),
    [
        (1, of_one(enc_type="PER_BLOCK", block_size=32), "enc_type 'PER_BLOCK'.*blocks are not supported"),
        (1, of_one(enc_type="LPBQ"), "enc_type 'LPBQ'"),
        (1, of_one(enc_type=None), "enc_type None"),
        (1, of_one(dtype="BOOL"), "dtype 'BOOL'"),
        (1, of_one(bw=4), "bitwidth 4"),
        (1, of_one(bw="8"), "bitwidth '8'"),
        (1, of_one(scale=[]), "0 numbers in scale"),
        (
            1,
            of_one(scale=[0.5, 0.5], offset=[-1, -1]),
            "2 numbers in scale and 2 in offset, expected one of each",
        ),
        (1, of_one(enc_type="PER_CHANNEL", scale=[0.5, 0.5]), "2 numbers in scale and 1 in offset"),
        (1, of_one(enc_type="PER_CHANNEL", scale=[0.5] * 2, offset=[-1] * 2), "2 encodings"),
        (1, of_one(offset=[-0.5]), "offset -0.5"),
        (1, of_one(scale=[0]), "scale 0"),
        (1, {"name": "x", "enc_type": "PER_TENSOR", "dtype": "INT", "bw": 8}, "the keys bw, dtype"),
        (1, {"enc_type": "PER_TENSOR"}, "entry 0: found an object"),
        (1, 3, "entry 0: found a number"),
        (2, of_two(block_size=32, axis=1), "scales of blocks"),
        (2, of_two(y_scale=[[0.5]], axis=0), "scales of blocks"),
        (2, of_two(output_dtype="int4", y_zero_point=0), "bitwidth 4"),
        (2, of_two(output_dtype="float8e4m3fn"), "output_dtype 'float8e4m3fn'"),
        (2, of_two(output_dtype=8), "output_dtype 8"),
        (
            2,
            of_two(output_dtype="int8", y_zero_point=128),
            "y_zero_point 128, expected an integer from -128 to 127",
        ),
        (2, of_two(y_zero_point=0.5), "y_zero_point 0.5"),
        (2, of_two(y_zero_point=[1, 2]), "1 number in y_scale and 2 in y_zero_point"),
        (2, of_two(y_scale=[0.5, 0.5], y_zero_point=[0, 0]), "the axis of the channels too"),
        (2, of_two(y_scale=[0.5, 0.5], y_zero_point=[0, 0], axis=0), "2 encodings"),
        (2, of_two(axis="0"), "axis '0'"),
        (2, of_two(y_scale=None), "scale None|the keys"),
        (2, {"name": "x", "output_dtype": "uint8"}, "the keys name, output_dtype, expected y_scale"),
        (2, {"name": "", "output_dtype": "uint8"}, "entry 0"),
    ],
)
def test_what_the_newer_forms_do_not_mean_is_refused(version, entry, message):
    key = "activation_encodings" if version == 1 else "encodings"
    held = {"version": f"{version}.0.0", key: [entry]}
    with pytest.raises(OptionError, match=message) as caught:
        read_external(json.dumps(held).encode(), "file.json", convolution().graph, ["w", "b"])
    assert caught.value.code == "option.external_quantization_file"
    assert "file.json" in str(caught.value)


@pytest.mark.parametrize(
    "held",
    [
        {"version": "3.0.0", "encodings": []},
        {"version": "1.0.0", "encodings": []},
        {"version": "2.0.0", "activation_encodings": []},
        {"version": "1.0.0", "activation_encodings": {}},
        {"version": 2, "encodings": []},
        {"version": None, "activation_encodings": []},
        {"activation_encodings": []},
        {"version": "2.0.0", "encodings": {}},
        {"version": "2.0.0", "encodings": [], "param_encodings": {}},
        {"version": "2.0.0", "encodings": [of_two(), of_two()]},
        {"version": "2.0.0"},
    ],
)
def test_forms_that_contradict_their_version_are_refused(held):
    with pytest.raises(OptionError, match=r"file\.json"):
        read_external(json.dumps(held).encode(), "file.json", convolution().graph, ["w", "b"])


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["name", "x", "bw", "scale", "offset", "y_scale", "output_dtype", "enc_type", "dtype"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_no_content_is_more_than_an_error(content):
    for key in ("encodings", "activation_encodings", "param_encodings"):
        for version in ("0.6.1", "1.0.0", "2.0.0"):
            data = json.dumps({"version": version, key: content}).encode()
            with contextlib.suppress(OptionError):
                read_external(data, "file.json", convolution().graph, ["w", "b"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("activation_encodings:\n  x: [\n", "YAML"),
        ("- a\nactivation_encodings: 1\n", "YAML"),
        ("activation_encodings: {}\nactivation_encodings: {}\n", "is already on line 1"),
        ("activation_encodings: &a\n  x: *a\n", "at most 8 levels"),
        (
            "activation_encodings:\n  x:\n  - {bitwidth: 8, dtype: int, scale: '0.1', offset: 0}\n",
            "a finite number",
        ),
        ("param_encodings: 7\n", "an object"),
    ],
)
def test_mistakes_in_yaml_are_named(text, message):
    with pytest.raises(OptionError, match=message):
        read_external(text.encode(), "f.encodings.yaml", convolution().graph, ["w", "b"])


def test_words_of_yaml_mean_what_they_mean_in_json():
    text = b"activation_encodings: {a: true, b: False, c: ~, d: , e: null, f: 'true', g: 12, h: 1.e-2}\n"
    meant = {"a": True, "b": False, "c": None, "d": None, "e": None, "f": "true", "g": 12, "h": 0.01}
    assert read_yaml(text) == {"activation_encodings": meant}


def test_words_of_yaml_that_are_names_stay_names():
    text = "activation_encodings:\n  12:\n  - {bitwidth: 8, scale: 1.e-2, offset: 0}\nparam_encodings: {}\n"
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["12"])],
        "g",
        [helper.make_tensor_value_info("x", 1, [1])],
        [helper.make_tensor_value_info("12", 1, [1])],
    )
    assert read_external(text.encode(), "f", graph, []).tensors["12"].scale == np.float32(0.01)
