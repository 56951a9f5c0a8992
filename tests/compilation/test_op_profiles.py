"""Times belong to the operations for which they are reported, for any process that compiled."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qaic
from child_process import run_script
from qaic.stats.reports import diff

ZOO = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
ZOO_MODELS = sorted(path.stem.removeprefix("light_") for path in ZOO.glob("*.onnx"))

COMPILE = """
import os
import sys
import qaic
model, folder = sys.argv[1:]
os.environ["QAIC_CACHE_DIR"] = folder + "-cache"
print(qaic.compile(model, output_dir=folder, stats_level=70).path)
"""


def conv_graph(build):
    """Write a graph of convolutions with a builder that adds nodes to it; return the model."""
    rng = np.random.default_rng(3)
    nodes, constants = [], []

    def node(kind, *inputs, **attributes):
        output = f"v{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [output], name=f"n{len(nodes)}", **attributes))
        return output

    def conv(value, fan_in, fan_out, group=1, size=3):
        name = f"w{len(constants)}"
        weight = rng.standard_normal((fan_out, fan_in // group, size, size)).astype(np.float32)
        constants.append(onnx.numpy_helper.from_array(weight, name))
        return node("Conv", value, name, group=group, pads=[size // 2] * 4)

    outputs = build(node, conv)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 24, 24])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def shuffled(node, conv):
    """Every convolution is followed by operators that need the usual layout."""
    value = conv("x", 3, 32)
    for _ in range(12):
        value = node("Tanh", node("Transpose", conv(value, 32, 32, group=2), perm=[0, 1, 3, 2]))
    return [value]


def branched(node, conv):
    """Equal branches from one value, half of which is laid out for several readers."""
    stem = node("Relu", conv("x", 3, 32))
    branches = [node("Sigmoid", conv(node("Relu", conv(stem, 32, 32)), 32, 32)) for _ in range(6)]
    return [node("Concat", *branches, axis=1)]


def returned(node, conv):
    """Each convolution is an output of the model, and the next convolution reads it."""
    value, outputs = "x", []
    for place in range(8):
        value = node("Relu", conv(value, 32 if place else 3, 32))
        outputs.append(value)
    return outputs


def narrow(node, conv):
    """Depths that fit no layout, between depths that fit one."""
    value, depth = "x", 3
    for next_depth in (32, 20, 32, 7, 64, 32, 20, 32):
        value = node("Relu", conv(value, depth, next_depth))
        depth = next_depth
    return [node("GlobalAveragePool", value)]


BUILT = {build.__name__: build for build in (shuffled, branched, returned, narrow)}


def compiled_elsewhere(model, folder):
    done = run_script(COMPILE, model, folder)
    return Path(done.stdout.strip())


@pytest.mark.run_profiles
@pytest.mark.parametrize("name", [*BUILT, *ZOO_MODELS])
def test_a_producer_ends_before_its_consumer_starts(name, tmp_path):
    if name in BUILT:
        model = tmp_path / "model.onnx"
        onnx.save(conv_graph(BUILT[name]), model)
    else:
        model = ZOO / f"light_{name}.onnx"
    with qaic.Session(compiled_elsewhere(model, tmp_path / "out")) as session:
        inputs = {
            key: np.ones(shape, np.float32) for key, (shape, _) in session.model_input_shape_dict.items()
        }
        with session.profile() as profile:
            session.run(inputs)
    (measured,) = profile.device
    columns = measured.descriptor.ops(0)
    executed = measured.ops["oc"].tolist()
    # Each operation is executed once, and no execution is assigned to the operation for all others.
    assert sorted(executed) == list(range(len(columns) - 1))
    starts = dict(zip(executed, measured.ops["start_u"].tolist(), strict=True))
    ends = {oc: starts[oc] + dur for oc, dur in zip(executed, measured.ops["dur_u"].tolist(), strict=True)}
    early = [
        (columns.name[oc], columns.name[maker])
        for oc in executed
        for _, maker, _ in columns.deps[oc]
        if starts[oc] < ends[maker]
    ]
    assert early == []


def profiled(model, **options):
    rng = np.random.default_rng(2)
    with qaic.Session(model, stats_level=70, **options) as session:
        shapes = session.model_input_shape_dict
        inputs = {key: rng.standard_normal(shape).astype(dtype) for key, (shape, dtype) in shapes.items()}
        with session.profile() as profile:
            session.run(inputs)
    return profile.capture()


@pytest.mark.run_profiles
@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_profiles_of_two_precisions_join_by_the_nodes_of_the_user(name):
    model = ZOO / f"light_{name}.onnx"
    sample = {"gpu_0/data_0" if name == "shufflenet" else "data_0": np.ones((1, 3, 224, 224), np.float32)}
    baseline = profiled(model)
    quantized = profiled(model, convert_to_quantize=True, calibration_data=[sample])
    for new in (quantized, profiled(model, convert_to_fp16=True)):
        rows = diff(baseline, new).table("nodes").rows
        assert [row[0] for row in rows if None in row[1:3]] == []
        # Most nodes have their own row.
        convolutions = sum(node.op_type == "Conv" for node in onnx.load(model).graph.node)
        assert len(rows) >= convolutions


def test_the_container_of_a_measured_program_is_the_same_from_every_process(tmp_path):
    model = tmp_path / "model.onnx"
    onnx.save(conv_graph(shuffled), model)
    containers = [compiled_elsewhere(model, tmp_path / f"out{place}").read_bytes() for place in range(3)]
    assert containers[1:] == containers[:2]
