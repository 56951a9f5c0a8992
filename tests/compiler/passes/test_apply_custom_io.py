"""Types and layouts at the interface of a program that differ from those of the model."""

import numpy as np
import pytest
from onnx import TensorProto

from compiler_oracle import info, model_of, node
from qaic.errors import OptionError
from single_pass import applied, before, content, ops, outputs

NAME = "apply-custom-io"


def pooled():
    return model_of(
        [node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2])],
        [info("x", [1, 3, 4, 4])],
        [info("y", [1, 3, 3, 3])],
    )


def asked(tmp_path, *entries):
    file = tmp_path / "io.yaml"
    file.write_text("".join(f"- IOName: {name}\n  Precision: {kind}\n{more}" for name, kind, more in entries))
    return {"custom_io_list_file": str(file)}


def test_border_gets_its_types_and_the_model_computes_as_before(tmp_path):
    options = asked(tmp_path, ("x", "float16", ""), ("y", "int8", "  Scale: 0.5\n  Offset: 3\n"))
    model, context = before(NAME, pooled(), **options)
    x = np.random.default_rng(1).standard_normal((1, 3, 4, 4)).astype(np.float16)
    expected = outputs(model, {"x": x.astype(np.float32)})["y"]
    assert applied(NAME, model, context)
    assert [(spec.name, spec.elem_type) for spec in (*model.inputs, *model.outputs)] == [
        ("x", TensorProto.FLOAT16),
        ("y", TensorProto.INT8),
    ]
    found = outputs(model, {"x": x})["y"]
    np.testing.assert_array_equal(found, np.clip(np.round(expected / 0.5 + 3), -128, 127).astype(np.int8))


def test_without_a_request_nothing_changes():
    model, context = before(NAME, pooled())
    found = content(model)
    for _ in range(2):
        assert not applied(NAME, model, context)
    assert content(model) == found
    assert ops(model) == ["MaxPool"]


def test_request_for_another_tensor_is_refused(tmp_path):
    model, context = before(NAME, pooled(), **asked(tmp_path, ("z", "float16", "")))
    with pytest.raises(OptionError, match="'z'"):
        applied(NAME, model, context)
