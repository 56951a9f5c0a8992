import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import decoder_model
from compiler_oracle import info, lowered, model_of, node, run, whole
from qaic.errors import CompileError

DOMAIN = "com.qualcomm.cloud"
LARGEST = np.iinfo(np.int32).max


def with_function(body, inputs, outputs, opset=17, domain=DOMAIN):
    """Build a model with one call of a function for the card."""
    function = helper.make_function(
        domain,
        "Moved",
        [value.name for value in inputs],
        [value.name for value in outputs],
        body,
        [helper.make_opsetid("", opset)],
    )
    call = helper.make_node(
        "Moved", [value.name for value in inputs], [value.name for value in outputs], domain=domain
    )
    model = model_of([call], inputs, outputs, opset=opset, functions=[function])
    model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


def scatter(data, indices, updates, opset=17, domain=DOMAIN, **options):
    """Scatter in a function; return the result of the compiled model."""
    elem_type = helper.np_dtype_to_tensor_dtype(data.dtype)
    model = with_function(
        [node("ScatterND", ["data", "indices", "updates"], ["y"])],
        [
            info("data", data.shape, elem_type),
            info("indices", indices.shape, TensorProto.INT64),
            info("updates", updates.shape, elem_type),
        ],
        [info("y", data.shape, elem_type)],
        opset,
        domain,
    )
    program = whole(lowered(model, **options))
    return run(program, {"data": data, "indices": indices, "updates": updates})["y"]


def written(data, indices, updates):
    """Return the result of a scatter that ignores indices out of range."""
    result = data.copy()
    for place in np.ndindex(indices.shape[:-1]):
        index = tuple(indices[place])
        if all(0 <= i < size for i, size in zip(index, data.shape, strict=False)):
            result[index] = updates[place]
    return result


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("outside", ["none", "some", "all"])
def test_scatter_writes_nowhere_for_indices_outside(opset, width, outside):
    rng = np.random.default_rng([opset, width, len(outside)])
    data = rng.standard_normal((4, 5, 6)).astype(np.float32)
    places = rng.permutation(np.prod(data.shape[:width]))[:4]
    indices = np.stack(np.unravel_index(places, data.shape[:width]), axis=-1).reshape(2, 2, width)
    if outside != "none":
        indices[0, 1, -1] = -1
        indices[1, 0, 0] = LARGEST
    if outside == "all":
        indices[..., width // 2] = data.shape[width // 2]
    updates = rng.standard_normal((2, 2, *data.shape[width:])).astype(np.float32)
    expected = written(data, indices, updates)
    assert (outside == "all") == np.array_equal(expected, data)
    for options in ({}, {"convert_to_fp16": True}):
        data, updates = (a.astype(np.float16).astype(np.float32) for a in (data, updates))
        found = scatter(data, indices.astype(np.int64), updates, opset, **options)
        np.testing.assert_array_equal(found, written(data, indices, updates))


def test_gather_reads_the_nearest_row_for_indices_outside():
    data = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    indices = np.int64([[[3], [-1], [LARGEST], [4]], [[0], [2], [-4], [1]]])
    model = with_function(
        [node("GatherND", ["data", "indices"], ["y"], batch_dims=1)],
        [info("data", data.shape), info("indices", indices.shape, TensorProto.INT64)],
        [info("y", [2, 4, 3])],
    )
    found = run(whole(lowered(model)), {"data": data, "indices": indices})["y"]
    rows = np.clip(indices, 0, 3)[..., 0]
    np.testing.assert_array_equal(found, np.stack([data[0][rows[0]], data[1][rows[1]]]))


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int16, np.int32, np.int64, np.float16])
@pytest.mark.parametrize("domain", ["com.qualcomm.cloud", "com.qti.aisw.onnx"])
def test_scatter_takes_every_element_type_in_every_domain_of_the_card(dtype, domain):
    rng = np.random.default_rng(3)
    data = rng.integers(0, 2, (3, 5, 2)).astype(dtype)
    indices = np.int64([[[0, 1], [2, LARGEST]], [[1, -1], [2, 4]]])
    updates = rng.integers(0, 2, (2, 2, 2)).astype(dtype)
    np.testing.assert_array_equal(
        scatter(data, indices, updates, domain=domain), written(data, indices, updates)
    )


def test_indices_of_type_int32_are_taken_as_a_card_takes_them():
    body = [
        node("Cast", ["places"], ["narrow"], to=TensorProto.INT32),
        node("ScatterND", ["data", "narrow", "updates"], ["kept"]),
        node("GatherND", ["kept", "narrow"], ["y"]),
    ]
    inputs = [info("data", [4, 2]), info("places", [3, 1], TensorProto.INT64), info("updates", [3, 2])]
    program = whole(lowered(with_function(body, inputs, [info("y", [3, 2])])))
    updates = np.arange(6, dtype=np.float32).reshape(3, 2)
    feeds = {"data": np.zeros((4, 2), np.float32), "places": np.int64([[3], [0], [2]]), "updates": updates}
    np.testing.assert_array_equal(run(program, feeds)["y"], updates)


@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize("shape", [[], [1]])
def test_operands_of_range_may_have_shape_1(opset, shape):
    def number(value, name):
        tensor = helper.make_tensor(name, TensorProto.INT64, shape, [value])
        return node("Constant", [], [name], value=tensor)

    body = [
        number(0, "start"),
        number(1, "step"),
        node("Shape", ["x"], ["sizes"]),
        number(1, "axis"),
        node("Gather", ["sizes", "axis"], ["count"]),
        node("Range", ["start", "count", "step"], ["numbers"]),
        node("Unsqueeze", ["numbers", "front"], ["row"]),
        node("Cast", ["row"], ["row_of_floats"], to=TensorProto.FLOAT),
        node("Add", ["x", "row_of_floats"], ["y"]),
    ]
    body.insert(0, node("Constant", [], ["front"], value_ints=[0]))
    model = with_function(body, [info("x", [2, "n"])], [info("y", [2, "n"])], opset)
    program = lowered(model, onnx_define_symbol={"n": 5})
    assert program.outputs[0].dims == (2, 5)
    x = np.ones((2, 5), np.float32)
    np.testing.assert_array_equal(run(whole(program), {"x": x})["y"], x + np.arange(5))


def norm(x, weight, epsilon=1e-6):
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(-1, keepdims=True) + epsilon) * weight.astype(np.float64)


def norm_model(elem_type, opset, rows=3, width=16):
    call = helper.make_node(
        "CustomRMSNorm", ["x", "weight"], ["y"], domain=decoder_model.AISW, epsilon=1e-6, name="/norm"
    )
    model = model_of(
        [call],
        [info("x", [rows, width], elem_type), info("weight", [width], elem_type)],
        [info("y", [rows, width], elem_type)],
        opset=opset,
        functions=[decoder_model.norm_function(opset)],
    )
    model.opset_import.append(helper.make_opsetid(decoder_model.AISW, 1))
    return model


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("elem_type", [TensorProto.FLOAT, TensorProto.FLOAT16])
@pytest.mark.parametrize("options", [{}, {"convert_to_fp16": True}])
def test_a_normalization_is_one_operator_with_float32_inside(opset, elem_type, options):
    rng = np.random.default_rng(1)
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    # The square of 3000 exceeds float16, so rounding each operator of the body would lose the result.
    x = (rng.standard_normal((3, 16)) * 3000).astype(np.float16).astype(dtype)
    weight = rng.uniform(0.5, 1.5, 16).astype(np.float16).astype(dtype)
    program = whole(lowered(norm_model(elem_type, opset), **options))
    found = run(program, {"x": x, "weight": weight})["y"]
    expected = norm(x, weight)
    if elem_type == TensorProto.FLOAT16 or options:
        # The result is rounded once.
        off = np.abs(found.astype(np.float64) - expected) / np.spacing(np.abs(expected).astype(np.float16))
        assert off.max() <= 0.5 + 1e-3
        np.testing.assert_array_equal(found, found.astype(np.float16))
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_engine_has_one_kernel_for_a_normalization(tmp_path):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    program = whole(lowered(norm_model(TensorProto.FLOAT, 17)))
    ort.InferenceSession(program.SerializeToString(), options, providers=["CPUExecutionProvider"])
    kinds = [n.op_type for n in onnx.load(tmp_path / "optimized.onnx").graph.node]
    # The last cast is to the type of the result.
    assert kinds == ["SimplifiedLayerNormalization", "Cast"]


def test_a_function_of_the_name_with_another_structure_keeps_its_body():
    body = [node("Mul", ["hidden_states", "weight"], ["y"])]
    function = helper.make_function(
        decoder_model.AISW,
        "CustomRMSNorm",
        ["hidden_states", "weight"],
        ["y"],
        body,
        [helper.make_opsetid("", 17)],
    )
    call = helper.make_node("CustomRMSNorm", ["x", "weight"], ["y"], domain=decoder_model.AISW)
    model = model_of([call], [info("x", [2]), info("weight", [2])], [info("y", [2])], functions=[function])
    model.opset_import.append(helper.make_opsetid(decoder_model.AISW, 1))
    feeds = {"x": np.float32([2, 3]), "weight": np.float32([4, 5])}
    assert run(whole(lowered(model)), feeds)["y"].tolist() == [8, 15]


@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize("options", [{}, {"convert_to_fp16": True}])
def test_a_normalization_without_its_epsilon_is_refused(opset, options):
    model = norm_model(TensorProto.FLOAT, opset)
    del model.graph.node[0].attribute[:]
    with pytest.raises(CompileError, match=r"'/norm' \(CustomRMSNorm\): found no attribute 'epsilon'"):
        lowered(model, **options)


def test_scatter_inside_a_branch_of_a_function_is_guarded():
    body = [
        helper.make_node(
            "If",
            ["condition"],
            ["y"],
            then_branch=helper.make_graph(
                [node("ScatterND", ["data", "indices", "updates"], ["z"])], "then", [], [info("z", [3])]
            ),
            else_branch=helper.make_graph([node("Neg", ["data"], ["w"])], "else", [], [info("w", [3])]),
        )
    ]
    inputs = [
        info("data", [3]),
        info("indices", [2, 1], TensorProto.INT64),
        info("updates", [2]),
        info("condition", [], TensorProto.BOOL),
    ]
    program = whole(lowered(with_function(body, inputs, [info("y", [3])])))
    feeds = {
        "data": np.zeros(3, np.float32),
        "indices": np.int64([[-1], [1]]),
        "updates": np.float32([7, 8]),
        "condition": np.array(True),
    }
    np.testing.assert_array_equal(run(program, feeds)["y"], [0, 8, 0])


def test_scatter_outside_such_functions_keeps_the_meaning_of_onnx():
    model = model_of(
        [node("ScatterND", ["data", "indices", "updates"], ["y"])],
        [info("data", [3]), info("indices", [1, 1], TensorProto.INT64), info("updates", [1])],
        [info("y", [3])],
    )
    program = lowered(model)
    assert [n.op_type for n in program.model.graph.node] == ["ScatterND"]
    feeds = {"data": np.zeros(3, np.float32), "indices": np.int64([[-1]]), "updates": np.float32([7])}
    np.testing.assert_array_equal(run(whole(program), feeds)["y"], [0, 0, 7])
