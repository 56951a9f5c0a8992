"""Results of inner operators as additional outputs: by name, by graph and name, or all."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import decoder_model
import qaic
import session_models
from qaic.compiler.passes.outputs import add_named
from qaic.configs import CompileConfig
from qaic.errors import CompileError

X = np.linspace(-3, 3, 8, dtype=np.float32).reshape(2, 4)


def names(qpc):
    return [mapping.name for mapping in qpc.buffer_mappings if mapping.io_type == 2]


def run(model, feeds, **options):
    return qaic.Session(qaic.compile(model, **options).path).run(feeds)


def every_output(model):
    """The results of onnxruntime for all tensors, in the order of the nodes."""
    full = onnx.ModelProto()
    full.CopyFrom(onnx.shape_inference.infer_shapes(model))
    types = {value.name: value for value in full.graph.value_info}
    present = {value.name for value in full.graph.output}
    full.graph.output.extend(
        types[name]
        for node in full.graph.node
        for name in node.output
        if name in types and name not in present
    )
    return full


def test_named_tensors_follow_the_outputs_of_the_model():
    model = session_models.affine()
    outputs = run(model, {"x": X}, extra_output_tensors=["a", "m"])
    assert list(outputs) == ["y", "m", "a"]
    expected = session_models.engine(every_output(model)).run(["y", "m", "a"], {"x": X})
    for got, wanted in zip(outputs.values(), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    "text",
    [
        "m,a",
        "net:m,a",
        "net:m;net:a",
        ["net:m", "a"],
        ["net:a,m"],
        "m;a",
        " m , a ",
    ],
)
def test_all_spellings(text):
    assert names(qaic.compile(session_models.affine(), extra_output_tensors=text)) == ["y", "m", "a"]


def test_the_configuration_class_asks_for_them():
    config = CompileConfig(backend="AIC", set_output_tensors="net:m,a;net:y")
    assert names(qaic.compile(session_models.affine(), config)) == ["y", "m", "a"]
    config = CompileConfig(backend="AIC", enable_intermediate_outputs=True)
    assert names(qaic.compile(session_models.affine(), config)) == ["y", "m", "a"]


def test_outputs_of_the_model_may_be_named():
    assert names(qaic.compile(session_models.affine(), extra_output_tensors="y")) == ["y"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nn", "no result of a node"),
        ("x", "the name is an input of the model"),
        ("w", "no result of a node"),
        ("graph0:m", "no graph 'graph0'"),
        ("net:nn", "no result of a node"),
    ],
)
def test_unknown_tensors_are_refused(text, reason):
    with pytest.raises(CompileError, match=reason) as caught:
        qaic.compile(session_models.affine(), extra_output_tensors=text)
    assert caught.value.code == "compile.unknown_output"


def test_a_tensor_that_was_cut_away_is_refused_with_the_way_out():
    model = session_models.affine()
    with pytest.raises(CompileError, match="list it there"):
        qaic.compile(model, output_node_names="m", extra_output_tensors="a")
    assert names(qaic.compile(model, output_node_names="m,a")) == ["m", "a"]


def test_names_that_hold_separators_stand_alone():
    model = session_models.model(
        [
            helper.make_node("Neg", ["x"], ["a:0"]),
            helper.make_node("Abs", ["a:0"], ["b,c;d"]),
            helper.make_node("Relu", ["b,c;d"], ["y"]),
        ],
        [("x", "float32", [2, 4])],
        [("y", "float32", [2, 4])],
    )
    assert names(qaic.compile(model, extra_output_tensors="a:0")) == ["y", "a:0"]
    assert names(qaic.compile(model, extra_output_tensors=["a:0", "b,c;d"])) == ["y", "a:0", "b,c;d"]


def test_every_tensor_that_a_buffer_can_hold():
    model = session_models.model(
        [
            helper.make_node("Neg", ["x"], ["n"]),
            helper.make_node("Greater", ["n", "x"], ["flag"]),
            helper.make_node("NonZero", ["x"], ["places"]),
            helper.make_node("Shape", ["places"], ["shape"]),
            helper.make_node("Cast", ["n"], ["whole"], to=onnx.TensorProto.INT32),
            helper.make_node("Cast", ["n"], ["wide"], to=onnx.TensorProto.DOUBLE),
            helper.make_node("Where", ["flag", "n", "x"], ["y"]),
        ],
        [("x", "float32", [2, 4])],
        [("y", "float32", [2, 4])],
    )
    outputs = run(model, {"x": X}, all_intermediate_outputs=True)
    # A bool, an element type without buffers, and a shape that depends on data cannot be outputs.
    assert list(outputs) == ["y", "n", "shape", "whole"]
    np.testing.assert_array_equal(outputs["n"], -X)
    np.testing.assert_array_equal(outputs["whole"], (-X).astype(np.int32))


def test_a_shape_that_depends_on_data_cannot_be_asked_for():
    model = session_models.model(
        [helper.make_node("NonZero", ["x"], ["places"]), helper.make_node("Neg", ["x"], ["y"])],
        [("x", "float32", [2, 4])],
        [("y", "float32", [2, 4])],
    )
    with pytest.raises(CompileError, match="'places'"):
        qaic.compile(model, extra_output_tensors="places")


def test_with_fp16_they_are_on_its_grid():
    outputs = run(session_models.affine(), {"x": X}, all_intermediate_outputs=True, convert_to_fp16=True)
    assert list(outputs) == ["y", "m", "a"]
    for value in outputs.values():
        np.testing.assert_array_equal(value, value.astype(np.float16).astype(np.float32))


def test_folding_leaves_what_is_seen():
    rng = np.random.default_rng(1)
    constants = {
        "w": rng.standard_normal((3, 2, 3, 3), np.float32),
        **{name: rng.uniform(0.5, 2, 3).astype(np.float32) for name in ("scale", "bias", "mean", "var")},
    }
    model = session_models.model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"]),
            helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["y"]),
        ],
        [("x", "float32", [1, 2, 5, 5])],
        [("y", "float32", [1, 3, 3, 3])],
        constants,
    )
    x = rng.standard_normal((1, 2, 5, 5), np.float32)
    outputs = run(model, {"x": x}, all_intermediate_outputs=True, convert_to_fp16=True)
    wanted = session_models.engine(every_output(model)).run(["c"], {"x": x})[0]
    np.testing.assert_allclose(outputs["c"], wanted, rtol=2e-2, atol=2e-2)


def test_sets_of_shapes_have_them_too(tmp_path):
    model = session_models.model(
        [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Abs", ["n"], ["y"])],
        [("x", "float32", ["batch", 4])],
        [("y", "float32", ["batch", 4])],
    )
    entries = {
        "specializations": [
            {"name": "small", "symbols": {"batch": 1}},
            {"name": "large", "symbols": {"batch": 3}},
        ]
    }
    for options in ({"all_intermediate_outputs": True}, {"extra_output_tensors": "small:n;large:n"}):
        qpc = qaic.compile(model, network_specialization_config=entries, **options)
        session = qaic.Session(qpc.path)
        for rows in (1, 3):
            outputs = session.run({"x": np.ones((rows, 4), np.float32)})
            assert {name: value.shape for name, value in outputs.items()} == {"y": (rows, 4), "n": (rows, 4)}
    assert qpc.options["extra_output_tensors"] == ["small:n;large:n"]


def test_a_decoder_shows_all_it_computes():
    model = decoder_model.decoder()
    plain = qaic.compile(model, onnx_define_symbol={"batch_size": 1, "seq_len": 1, "ctx_len": 8})
    full = qaic.compile(
        model,
        onnx_define_symbol={"batch_size": 1, "seq_len": 1, "ctx_len": 8},
        all_intermediate_outputs=True,
    )
    assert len(names(full)) > len(names(plain))
    assert names(full)[: len(names(plain))] == names(plain)


@given(
    st.lists(
        st.sampled_from(["a", "b", "c:0", "d,e", "f;g"]),
        unique=True,
    ),
    st.booleans(),
)
def test_lists_mean_what_they_say(wanted, prefixed):
    model = session_models.model(
        [helper.make_node("Neg", ["x"], [name]) for name in ("a", "b", "c:0", "d,e", "f;g", "y")],
        [("x", "float32", [2])],
        [("y", "float32", [2])],
    )
    items = [f"net:{name}" if prefixed and name in {"a", "b", "c:0"} else name for name in wanted]
    add_named(model, items, {"net"})
    outputs = [value.name for value in model.graph.output]
    assert outputs[0] == "y"
    assert sorted(outputs[1:]) == sorted(wanted)
