"""Exports of torch's dynamo exporter compute the same as torch.

``tools/export_dynamo_models.py`` writes the files, with inputs and the outputs of torch.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime import __version__ as engine_version

import qaic
from qaic.cli import compile as compile_tool

FOLDER = Path(__file__).parents[1] / "data" / "dynamo"
EXPORTS = json.loads((FOLDER / "exports.json").read_text())
DECODERS = [name for name in EXPORTS if name.startswith("decoder")]

#: Decoders whose functions for the card are expanded: padding is written to the last row of a cache.
EXPANDED = {"decoder-inlined", "decoder-optimized"}

#: Operators that are newer than the oldest engine.
YOUNG = {"Attention": (1, 23), "RMSNormalization": (1, 23)}


@cache
def model_of(name):
    return onnx.load(FOLDER / f"{name}.onnx", load_external_data=False)


@cache
def arrays_of(name):
    with np.load(FOLDER / f"{name}.npz") as archive:
        return dict(archive)


def arrays(name, case, kind):
    """Inputs or outputs of one case."""
    prefix = f"{case}/{kind}/"
    return {
        key.removeprefix(prefix): array for key, array in arrays_of(name).items() if key.startswith(prefix)
    }


def sets_of_sizes(name):
    """Sizes of the symbols in the cases, each set of sizes once."""
    sets = {json.dumps(sizes): sizes for sizes in EXPORTS[name]["cases"].values()}
    return [sizes for sizes in sets.values() if sizes]


def skip_where_the_engine_is_older(name):
    engine = tuple(map(int, engine_version.split(".")[:2]))
    for node in model_of(name).graph.node:
        if YOUNG.get(node.op_type, (0,)) > engine:
            pytest.skip(f"onnxruntime {engine_version} has no {node.op_type}")


def options_of(name):
    """Keyword arguments that fix all sizes."""
    sets = sets_of_sizes(name)
    if not sets:
        return {}
    if len(sets) == 1:
        return {"onnx_define_symbol": list(sets[0].items())}
    entries = [{"name": f"set{at}", "symbols": sizes} for at, sizes in enumerate(sets)]
    return {"network_specialization_config": entries}


def compiled_by_tool(name, folder, *flags):
    """Compile with ``qaic-compile``; return the container."""
    words = [f"-m={FOLDER / name}.onnx", f"-aic-binary-dir={folder / 'binaries'}", *flags]
    sets = sets_of_sizes(name)
    if len(sets) == 1:
        words += [f"-onnx-define-symbol={symbol},{size}" for symbol, size in sets[0].items()]
    elif sets:
        # The format of exporters' files: flat, with sizes as text.
        entries = [{symbol: str(size) for symbol, size in sizes.items()} for sizes in sets]
        path = folder / "specializations.json"
        path.write_text(json.dumps({"specializations": entries}))
        words.append(f"-network-specialization-config={path}")
    assert compile_tool.main(words) == 0
    return folder / "binaries" / "programqpc.bin"


def assert_near(found, expected, precision):
    assert found.shape == expected.shape
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected)
        return
    expected = expected.astype(np.float64)
    scale = max(1.0, np.abs(expected).max())
    # Results of a few layers: a few units in the last place of their type.
    bound = scale * {"float32": 2e-6, "float16": 5e-3, "bfloat16": 1e-2}[precision]
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=0, atol=bound)


def written_rows(name, output, array):
    """The rows of a cache on which torch and the export agree."""
    return array[:, :, :-1] if name in EXPANDED and output.endswith("_RetainedState") else array


def precision_of(name, precision):
    """The type with fewer bits: that of the model, or that for which it is compiled."""
    return name.rpartition("-")[2] if name.endswith("float16") else precision


@pytest.fixture(scope="module")
def container(tmp_path_factory):
    """Compile an export with ``qaic-compile`` in one precision; each program is compiled once."""

    @cache
    def compiled_once(name, precision):
        flags = ["-convert-to-fp16"] if precision == "float16" else []
        return compiled_by_tool(name, tmp_path_factory.mktemp(name), *flags)

    return compiled_once


@pytest.mark.parametrize(
    ("way", "precision"),
    [
        ("tool", "float32"),
        ("session", "float16"),
        pytest.param("tool", "float16", marks=pytest.mark.whole),
        pytest.param("session", "float32", marks=pytest.mark.whole),
    ],
)
@pytest.mark.parametrize("name", EXPORTS)
def test_exports_compute_what_torch_computes(name, way, precision, container):
    skip_where_the_engine_is_older(name)
    if way == "session":
        options = {**options_of(name), "convert_to_fp16": precision == "float16"}
        session = qaic.Session(FOLDER / f"{name}.onnx", **options)
    else:
        session = qaic.Session(container(name, precision))
    with session:
        for case in EXPORTS[name]["cases"]:
            found = session.run(arrays(name, case, "inputs"))
            expected = arrays(name, case, "outputs")
            assert found.keys() == expected.keys()
            for output, array in expected.items():
                assert found[output].dtype == array.dtype
                both = (written_rows(name, output, values) for values in (found[output], array))
                assert_near(*both, precision_of(name, precision))


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("name", DECODERS)
def test_decoders_keep_their_caches_on_the_device(name, precision):
    """A prompt with padding, then tokens one by one; the shapes of the tokens select the specialization."""
    options = {**options_of(name), "convert_to_fp16": precision == "float16", "retained_state": True}
    with qaic.Session(FOLDER / f"{name}.onnx", **options) as session:
        for case in EXPORTS[name]["cases"]:
            inputs = arrays(name, case, "inputs")
            tokens = {input_: array for input_, array in inputs.items() if not input_.startswith("past_")}
            logits = session.run(tokens)["logits"]
            expected = arrays(name, case, "outputs")["logits"]
            assert_near(logits, expected, precision_of(name, precision))
            best = expected.argmax(-1)[..., None]
            left = np.take_along_axis(expected, best, -1) - np.take_along_axis(
                expected, logits.argmax(-1)[..., None], -1
            )
            assert left.max() < 0.01, "another token, and not because two are as likely"


def test_padding_writes_nothing_where_the_functions_are_there():
    """The prompt is shorter than its chunk; exports whose functions are expanded write the last row."""
    for name in set(DECODERS) - {"decoder-slots", "decoder-slots-functions", "decoder-float16"}:
        with qaic.Session(FOLDER / f"{name}.onnx", **options_of(name)) as session:
            found = session.run(arrays(name, "step0", "inputs"))
        expected = arrays(name, "step0", "outputs")
        for output in ("past_key.0_RetainedState", "past_value.1_RetainedState"):
            assert not expected[output][:, :, -1].any()
            assert found[output][:, :, -1].any() == (name in EXPANDED)


def test_a_bfloat16_export_rounds_as_torch_does_on_hardware_that_has_the_type():
    name = "perceptron-bfloat16"
    options = {**options_of(name), "aic_hw_version": "ai200", "allow_hw_mismatch": True}
    with qaic.Session(FOLDER / f"{name}.onnx", **options) as session:
        for case in EXPORTS[name]["cases"]:
            found = session.run(arrays(name, case, "inputs"))["classes"]
            expected = arrays(name, case, "outputs")["classes"]
            # One step of bfloat16 below 0.5.
            np.testing.assert_allclose(found, expected, rtol=0, atol=2.0**-9)
            assert not (found.view(np.uint32) & 0xFFFF).any(), "not on the grid"


def test_inputs_of_any_size():
    with qaic.Session(
        FOLDER / "perceptron-opset18.onnx",
        dynamic_shape_input=["features"],
        onnx_define_symbol=[("batch", 9)],
    ) as session:
        for case in EXPORTS["perceptron-opset18"]["cases"]:
            found = session.run(arrays("perceptron-opset18", case, "inputs"))
            assert_near(found["classes"], arrays("perceptron-opset18", case, "outputs")["classes"], "float32")


@pytest.mark.parametrize("name", EXPORTS)
def test_containers_hold_no_trace_of_the_exporter(name, container):
    skip_where_the_engine_is_older(name)
    content = container(name, "float32").read_bytes()
    for trace in (b"pkg.torch.onnx", b"stack_trace", b"tools/dynamo_models"):
        assert trace not in content


# --- forms of the exports -----------------------------------------------------------------------------------


def test_the_files_are_small():
    for path in FOLDER.glob("*.onnx*"):
        assert path.stat().st_size < 100_000


def calls_of(name, operator):
    """Nodes of an operator, in the graph and in the bodies of functions."""
    model = model_of(name)
    bodies = (model.graph.node, *(function.node for function in model.functions))
    return [node for nodes in bodies for node in nodes if node.op_type == operator]


def symbols_of(name):
    graph = model_of(name).graph
    values = (*graph.input, *graph.output, *graph.value_info)
    return {dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim} - {""}


def test_the_exports_are_what_they_are_for():
    """The exports have the expected forms; otherwise, the tests above would test less without notice."""
    assert {model_of(name).opset_import[0].version for name in EXPORTS if not model_of(name).functions} >= {
        18, 20, 21, 23,
    }  # fmt: skip
    assert (FOLDER / "perceptron-opset20.onnx.data").stat().st_size
    assert "4*height4" in symbols_of("picture")
    assert "past_len + seq_len" in symbols_of("growing-caches-opset18")
    assert calls_of("branches", "If")
    assert calls_of("recurrence", "Scan")
    assert calls_of("norms-opset23", "RMSNormalization")
    assert calls_of("encoder-opset23", "Attention")
    assert not calls_of("encoder-opset20", "Attention")
    initializers = {tensor.name for tensor in model_of("indexing").graph.initializer}
    assert initializers & {value.name for value in model_of("indexing").graph.value_info}
    for name in ("packed-weights", "packed-weights-optimized"):
        (dequantize,) = calls_of(name, "DequantizeLinear")
        assert "block_size" in {attribute.name for attribute in dequantize.attribute}
        assert model_of(name).opset_import[-1].version == 18
    assert calls_of("packed-weights", "CastToUInt4")[0].domain == "com.qti.aisw.onnx"
    for name in ("decoder", "decoder-functions"):
        assert {node.domain for node in calls_of(name, "CtxScatter")} == {"com.qualcomm.cloud"}
        assert {node.domain for node in calls_of(name, "CustomRMSNorm")} == {"com.qti.aisw.onnx"}
        assert calls_of(name, "SplitToSequence")
    assert calls_of("decoder-slots", "CtxGatherCB")
    layers = [node for node in model_of("decoder-functions").graph.node if "subgraph" in node.domain]
    assert len(layers) == 2
    assert not model_of("decoder-inlined").functions
    assert {len(EXPORTS[name]["functions"]) for name in EXPORTS} == {0, 1}


def test_the_expanded_decoders_have_range_operands_of_shape_one():
    for name in EXPANDED:
        graph = model_of(name).graph
        ones = {tensor.name for tensor in graph.initializer if list(tensor.dims) == [1]}
        ones |= {
            node.output[0]
            for node in graph.node
            if node.op_type == "Constant" and any(a.name == "value_ints" for a in node.attribute)
        }
        assert any(ones & set(node.input) for node in calls_of(name, "Range"))
