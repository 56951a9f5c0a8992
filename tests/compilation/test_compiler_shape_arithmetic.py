"""Models of old operator sets that compute their shapes, in the form of exporters of that time."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import qaic
from compiler_oracle import info, node
from qaic.errors import CompileError


def flattening(version, extra=()):
    """Reshape [n, c, h, w] to [n, c, h * w] with sizes read from the input, then a product."""
    integers = {"start": [0], "end": [2], "axis": [0], "rest": [-1]}
    nodes = [
        node("Relu", ["x"], ["positive"]),
        node("Shape", ["positive"], ["shape"]),
        node("Slice", ["shape", "start", "end", "axis"], ["kept"]),
        node("Concat", ["kept", "rest"], ["target"], axis=0),
        node("Reshape", ["positive", "target"], ["flat"]),
        *extra,
        node("MatMul", ["flat", "w"], ["y"]),
    ]
    constants = [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in integers.items()]
    weights = np.random.default_rng(0).normal(0, 1, (20, 3)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "net",
        [info("x", ["n", 2, "h", "w"])],
        [info("y", ["a", "b", "c"])],
        [*constants, numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=7)


@pytest.mark.parametrize("version", [11, 12, 13, 14, 15, 17])
def test_sizes_read_from_the_input_are_followed(version, tmp_path):
    onnx.save(flattening(version), tmp_path / "net.onnx")
    x = np.random.default_rng(1).normal(0, 1, (1, 2, 4, 5)).astype(np.float32)
    spec = {"input_name": "x", "input_type": "float32", "input_shape": list(x.shape)}
    with qaic.Session(tmp_path / "net.onnx", model_inputs=[spec]) as session:
        found = session.run({"x": x})["y"]
    expected = ort.InferenceSession(str(tmp_path / "net.onnx")).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_what_depends_on_data_is_still_refused(tmp_path):
    extra = [node("NonZero", ["x"], ["places"]), node("Shape", ["places"], ["z"])]
    model = flattening(12, extra)
    model.graph.output.append(info("z", ["d"], onnx.TensorProto.INT64))
    model.graph.output.append(info("places", [4, "count"], onnx.TensorProto.INT64))
    onnx.save(model, tmp_path / "net.onnx")
    spec = {"input_name": "x", "input_type": "float32", "input_shape": [1, 2, 4, 5]}
    with pytest.raises(CompileError, match="only known when the program runs"):
        qaic.Session(tmp_path / "net.onnx", model_inputs=[spec])
