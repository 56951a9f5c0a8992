"""Types and shapes of all values, unless they are already known."""

import numpy as np
import pytest
from onnx import TensorProto, shape_inference

import decoder_model
from compiler_oracle import info, lowered, model_of, node
from qaic.compiler.ir.value_info import collect_shapes, collect_types
from qaic.compiler.passes.shape_inference import engine_shapes
from qaic.compiler.pipeline import VERIFY_VARIABLE
from qaic.errors import CompileError
from qaic.options.files.specializations import SpecializationEntry
from single_pass import applied, before, content

NAME = "infer-shapes"


def product(shape=("batch", 3)):
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Shape", ["p"], ["s"]), node("Relu", ["p"], ["y"])]
    return model_of(nodes, [info("x", shape)], [info("y", None)], [("w", np.ones((3, 4), np.float32))])


def test_every_value_has_a_type_and_a_shape():
    model, context = before(NAME, product(), onnx_define_symbol=[("batch", 2)])
    assert not applied(NAME, model, context)
    (form,) = model.specialized
    assert {"x": (2, 3), "w": (3, 4), "p": (2, 4), "y": (2, 4)}.items() <= collect_shapes(form).items()
    assert collect_types(form)["y"] == TensorProto.FLOAT
    assert [spec.dims for spec in (*model.inputs, *model.outputs)] == [(2, 3), (2, 4)]


def test_what_is_known_is_not_inferred_again():
    model, context = before(NAME, product([2, 3]))
    applied(NAME, model, context)
    forms, found = model.specialized, content(model)
    assert not applied(NAME, model, context)
    assert model.specialized is forms
    assert content(model) == found


def test_each_specialization_has_its_shapes(tmp_path):
    file = tmp_path / "sets.json"
    file.write_text('{"specializations": [{"batch": "1"}, {"batch": "5"}]}')
    model, context = before(NAME, product(), network_specialization_config=str(file))
    applied(NAME, model, context)
    assert [collect_shapes(form)["p"] for form in model.specialized] == [(1, 4), (5, 4)]
    assert model.outputs[0].dims == (5, 4)


def test_shape_that_depends_on_data_is_refused():
    proto = model_of([node("NonZero", ["x"], ["y"])], [info("x", [4])], [info("y", None, TensorProto.INT64)])
    model, context = before(NAME, proto)
    with pytest.raises(CompileError, match="only known when the program runs"):
        applied(NAME, model, context)


def test_a_decoder_is_inferred_five_times_for_each_set_of_shapes_without_the_engine(monkeypatch):
    """Nearly all time of compiling a decoder is inference, and the engine takes longer than onnx."""
    model = decoder_model.decoder()
    sizes = []

    def infer(given, *arguments, **options):
        sizes.append(len(given.graph.node))
        return known(given, *arguments, **options)

    def refuse(*_, **__):
        raise AssertionError("the engine infers shapes")

    known = shape_inference.infer_shapes
    monkeypatch.setattr(shape_inference, "infer_shapes", infer)
    monkeypatch.setattr(engine_shapes, "engine_session", refuse)
    monkeypatch.delenv(VERIFY_VARIABLE, raising=False)
    sets = [
        SpecializationEntry(entry["name"], {name: int(size) for name, size in entry["symbols"].items()})
        for entry in decoder_model.specializations()
    ]
    lowered(model, network_specialization_config=sets, retained_state=True)
    whole = [size for size in sizes if size > len(model.graph.node) / 2]
    # Two more decide whether functions are expanded.
    assert len(whole) == 2 + 5 * len(sets)
