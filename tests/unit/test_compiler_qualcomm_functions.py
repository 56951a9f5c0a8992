import numpy as np
import pytest
from compiler_oracle import info, lowered, model_of, node, run, whole
from onnx import TensorProto, helper

DOMAIN = "com.qualcomm.cloud"
LARGEST = np.iinfo(np.int32).max


def with_function(body, inputs, outputs, opset=17):
    """Build a model of one call of a function for the card."""
    function = helper.make_function(
        DOMAIN,
        "Moved",
        [value.name for value in inputs],
        [value.name for value in outputs],
        body,
        [helper.make_opsetid("", opset)],
    )
    call = helper.make_node(
        "Moved", [value.name for value in inputs], [value.name for value in outputs], domain=DOMAIN
    )
    model = model_of([call], inputs, outputs, opset=opset, functions=[function])
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return model


def scatter(data, indices, updates, opset=17, **options):
    """Scatter in a function; returns what the compiled model computes."""
    model = with_function(
        [node("ScatterND", ["data", "indices", "updates"], ["y"])],
        [
            info("data", data.shape),
            info("indices", indices.shape, TensorProto.INT64),
            info("updates", updates.shape),
        ],
        [info("y", data.shape)],
        opset,
    )
    program = whole(lowered(model, **options))
    return run(program, {"data": data, "indices": indices, "updates": updates})["y"]


def written(data, indices, updates):
    """What a scatter means that ignores indices outside."""
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
