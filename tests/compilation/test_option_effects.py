"""All options of the compiler that change results, state or accepted models have this effect on the CPU
device.

An option here creates another program from one model: other bindings, constants, nodes or buffers, in
addition to the record of the option. Tests of each feature check the values.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import qaic
from compiler_oracle import info, model_of, node
from qaic.cli.qpc.diff import differences
from qaic.errors import QaicError
from qaic.options.spec import Effect, Stage
from qaic.options.table import SPECS

TESTS = Path(__file__).resolve().parents[1]

RNG = np.random.default_rng(11)
SAMPLES = [
    {"x": RNG.standard_normal((1, 32)).astype(np.float32), "z": np.ones(32, np.float32)} for _ in range(4)
]
QUANTIZED = {"convert_to_quantize": True, "calibration_data": SAMPLES}
ONE = {"onnx_define_symbol": {"n": 1}}

# Option -> its value, the other options of both sides, and the options of the side without it.
CHANGES = {
    "output_node_names": (["m"], ONE),
    "extra_output_tensors": (["m"], ONE),
    "all_intermediate_outputs": (True, ONE),
    "model_inputs": ([{"input_name": "x", "input_type": "float32", "input_shape": [2, 32]}], {}, ONE),
    "onnx_define_symbol": ({"n": 3}, {}, ONE),
    "dynamic_shape_input": (["x"], {"onnx_define_symbol": {"n": 4}}),
    "batchsize": (4, {}, ONE),
    "network_specialization_config": ([{"n": 1}, {"n": 2}], ONE),
    "custom_io_list_file": ([{"IOName": "x", "Precision": "float16"}], ONE),
    "convert_to_fp16": (True, ONE),
    "clip_fp16_constants": (False, ONE | {"convert_to_fp16": True}),
    "execute_nodes_in_fp16": (["MatMul"], ONE),
    "node_precision_info_file": ({"FP16NodeInstanceNames": ["m"]}, ONE),
    "keep_original_precision_for_nodes": (["MatMul"], ONE | {"convert_to_fp16": True}),
    "mxfp6_matmul": (True, ONE),
    "exclude_mxfp6_matmul": (["m"], ONE | {"mxfp6_matmul": True}),
    "quantization_schema": ("asymmetric", ONE | QUANTIZED),
    "quantization_schema_activations": ("asymmetric", ONE | QUANTIZED),
    "quantization_schema_constants": ("symmetric_with_power2_scale", ONE | QUANTIZED),
    "quantization_calibration": ("Percentile", ONE | QUANTIZED | {"percentile_calibration_value": 90}),
    "percentile_calibration_value": (90, ONE | QUANTIZED | {"quantization_calibration": "Percentile"}),
    "num_histogram_bins": (
        32,
        ONE | QUANTIZED | {"quantization_calibration": "Percentile", "percentile_calibration_value": 90},
    ),
    "quantization_precision": ("Int16", ONE | QUANTIZED),
    "quantization_precision_bias": ("Int8", ONE | QUANTIZED),
    "enable_rowwise": (True, ONE | QUANTIZED),
    "convert_to_quantize": (True, ONE),
    "use_random_input_data": ("gaussian", ONE | {"convert_to_quantize": True}),
    "calibration_data": (SAMPLES, ONE | {"convert_to_quantize": True}),
    "combine_inputs": (False, ONE),
    "combine_outputs": (False, ONE | {"extra_output_tensors": ["m"]}),
    "qpc_crc": (True, ONE),
}

# Options that need another model or a file, or that do not affect the container; other tests show their
# effect.
ELSEWHERE = {
    "aic_operator_list": "compiler/reports/test_support_report.py",
    "allow_mxint8_mdp_io": "compiler/passes/emulation/test_mxint8.py",
    "allow_profile_mismatch": "quantized/test_calibration_files.py",
    "allow_unknown_options": "compiler/backend/test_card_driver.py",
    "always_expand_onnx_functions": "compilation/test_compiler_inlining.py",
    "compile_only": "cli/test_compile.py",
    "enable_channelwise": "compiler/quantization/test_quantize_insertion.py",
    "external_quantization_file": "quantized/test_calibration_files.py",
    "graph_names": "compiler/frontend/test_compiler_specializations.py",
    "input_list_file": "quantized/test_calibration_files.py",
    "io_crc": "qaicrt/test_io_crc.py",
    "io_crc_stride": "qaicrt/test_io_crc.py",
    "load_embedding_tables": "compilation/test_side_files.py",
    "load_profile": "quantized/test_quantize_containers.py",
    "mxint8_kv_cache": "session/test_session_state.py",
    "output_shapes": "compiler/passes/shape_inference/test_loop_shapes.py",
    "register_custom_op": "compilation/test_custom_ops.py",
    "retained_state": "session/test_session_state.py",
    "split_retained_state_io": "session/test_session_state.py",
    "strict_aic": "compiler/reports/test_support_report.py",
    "target": "compiler/backend/test_card_driver.py",
    "stored_weights": "compilation/test_stored_weights.py",
    "whole_caches": "property/test_decoding_in_place.py",
}


# Options without a visible effect here: they do not change a graph of two operators, or act when a program is
# loaded or run.
SATISFIED = {
    "always_expand_onnx_functions",
    "combine_inputs",
    "combine_outputs",
    "model_inputs",
    "output_shapes",
}
SATISFIED |= {"stored_weights", "strict_aic", "compile_only", "io_crc"}
# Options whose value is a file or another target.
WITH_FILES = {"aic_operator_list", "external_quantization_file", "input_list_file", "load_embedding_tables"}
WITH_FILES |= {"load_profile", "register_custom_op", "target"}
OTHER_VALUES = {"graph_names": ["a"], "io_crc_stride": 64}


def is_changed(plain, other):
    """Return True if a program differs, apart from the record of its options."""
    found = differences(plain, other)
    segments = found["segments"]
    # The plan contains the options, so the file of the program differs in any case.
    return (
        any(found["bindings"].values())
        or any(found[part] for part in ("shapes", "constants", "graph"))
        or "networkdesc.bin" in segments.get("changed", {})
        or "added" in segments
    )


@pytest.mark.parametrize("name", sorted((CHANGES.keys() | ELSEWHERE.keys()) - SATISFIED - WITH_FILES))
def test_an_option_that_changes_nothing_is_named(name, caplog):
    values = info("x", [2, 32]), info("y", [2, 32])
    simple = model_of([node("Relu", ["x"], ["m"]), node("Sin", ["m"], ["y"])], values[:1], values[1:])
    given = CHANGES[name][0] if name in CHANGES else OTHER_VALUES.get(name, True)
    said, has_effect = [], False
    try:
        has_effect = is_changed(qaic.compile(simple), qaic.compile(simple, **{name: given}))
    except QaicError as error:
        said.append(str(error))
    assert has_effect or any(name in message for message in (*said, *caplog.messages))


@pytest.fixture(scope="module")
def model():
    """Two products with biases: one constant exceeds float16, and the channels have different ranges."""
    first = (RNG.standard_normal((32, 64)) * np.geomspace(0.1, 4, 64)).astype(np.float32)
    second = (RNG.standard_normal((64, 32)) * np.geomspace(0.1, 4, 32)).astype(np.float32)
    bias = RNG.standard_normal(32).astype(np.float32)
    bias[0] = 1e5
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("Gemm", ["r", "v", "b"], ["g"]),
        helper.make_node("Add", ["g", "z"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "effects",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, [32]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 32])],
        [numpy_helper.from_array(array, name) for name, array in (("w", first), ("v", second), ("b", bias))],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return made.SerializeToString()


def test_every_option_that_changes_something_is_here():
    behaving = {spec.name for spec in SPECS if spec.effect is Effect.BEHAVIOR and spec.stage is Stage.COMPILE}
    assert CHANGES.keys() | ELSEWHERE.keys() == behaving
    assert not CHANGES.keys() & ELSEWHERE.keys()


@pytest.mark.parametrize(("name", "file"), ELSEWHERE.items())
def test_the_test_of_an_option_is_where_it_is_said(name, file):
    spec = next(spec for spec in SPECS if spec.name == name)
    text = (TESTS / file).read_text(encoding="utf-8")
    assert name in text or (spec.flag is not None and f"-{spec.flag.text}" in text)


@pytest.mark.parametrize("name", CHANGES)
def test_an_option_changes_the_program(name, model):
    value, others, *alone = CHANGES[name]
    plain = qaic.compile(model, **others, **(alone[0] if alone else {}))
    changed = qaic.compile(model, **{**others, name: value})
    assert is_changed(plain, changed)
