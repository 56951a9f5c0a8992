"""A real encoder with external constants, including constants of nodes."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import llm_exports
import qaic
from qaic.cli.compile import main


@pytest.mark.parametrize("half", [False, True])
def test_export_of_an_encoder_answers_as_onnxruntime(tmp_path, half):
    export = llm_exports.require("bert")
    model = onnx.load(export.model, load_external_data=False)
    external = [
        node.name
        for node in model.graph.node
        for attribute in node.attribute
        if attribute.t.data_location == onnx.TensorProto.EXTERNAL
    ]
    assert external, "the export is here for the constants outside its file"
    flags = export.flags if half else export.float32_flags
    assert main([*flags, f"-aic-binary-dir={tmp_path / 'qpc'}"]) == 0
    session = qaic.Session(tmp_path / "qpc" / "programqpc.bin")
    ids = np.random.default_rng(5).integers(1, 500, session.model_input_shape_dict["input_ids"][0])
    feeds = {"input_ids": ids, "attention_mask": (np.arange(ids.shape[1]) < ids.shape[1] - 3)[None] * 1}
    reference = ort.InferenceSession(export.model, providers=["CPUExecutionProvider"])
    (expected, *_) = reference.run(None, feeds)
    found = session.run(feeds)[reference.get_outputs()[0].name]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-2 if half else 1e-4)
