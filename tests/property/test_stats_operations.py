"""Programs that measure their operations compute the same, and their descriptors contain the whole graph."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_session_models import models
from test_specialization_models import dynamic_models, feeds_of

import engine_version
import qaic
import qaic.stats
import session_models
from qaic import _core
from qaic.errors import CompileError, DeviceError, InferenceError
from quantizable_graphs import graphs

#: Options with which a graph is lowered.
PRECISIONS = [{}, {"convert_to_fp16": True}]


def nodes_of(graph):
    """Return every node; nodes of nested graphs follow the node that contains them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from nodes_of(attribute.g)


def name_of(node):
    return node.name or next(name for name in node.output if name)


def without_number(name):
    """Return the name of a node that the engine created, without its random number."""
    return re.sub(r"_token_\d+$", "", name)


def check_descriptor(program, built):
    """Compare the descriptor of a program with the engine's graph and the user's model."""
    qpc = qaic.Qpc(program)
    descriptor = json.loads(bytes(qpc.segments["opstatsdesc.open"].data))
    ops = descriptor["cores"][0]["ops"]
    given_nodes = list(nodes_of(onnx.load_from_string(bytes(qpc.graph)).graph))
    names = [node.name for node in given_nodes]
    assert len(set(names)) == len(names)
    for name in names:
        assert name
        assert name.isprintable()
        assert not set(name) & set('"\\')
    with tempfile.TemporaryDirectory() as folder:
        engine = onnx.load(_core.save_optimized_graph(program, folder), load_external_data=False).graph
    run = list(nodes_of(engine))
    # If the engine cannot profile single runs, nodes have no names.
    assert [(without_number(op.get("engine_name", "")), op["kind"]) for op in ops] == [
        *((without_number(node.name), node.op_type) for node in run),
        ("*", "engine"),
    ]
    assert [op["name"].rpartition("/__")[2] for op in ops] == [str(place) for place in range(len(ops))]
    makers = {name: place for place, node in enumerate(run) for name in node.output if name}
    for place, node in enumerate(run):
        deps = {dep["oc"] for dep in ops[place].get("deps", ())}
        assert deps == {makers[name] for name in node.input if name in makers}
        # Dependencies precede an operation, so no cycle is possible.
        assert max(deps, default=-1) < place
    check_every_node_is_described(ops, built)
    assert qpc.plan["stats"]["capacity"]["OP"] >= len(ops)
    return ops


def check_every_node_is_described(ops, built):
    """A node belongs to an operation, or needs no time: its result is constant, empty, or not read."""
    graph = onnx.shape_inference.infer_shapes(built).graph
    empty = {
        value.name
        for value in (*graph.input, *graph.value_info, *graph.output)
        if any(dim.HasField("dim_value") and dim.dim_value == 0 for dim in value.type.tensor_type.shape.dim)
    }
    described = {name for op in ops for name in op.get("nodes", ())}
    made = {name for node in graph.node for name in node.output}
    varying = {value.name for value in graph.input} - empty
    for node in graph.node:
        if varying & set(node.input):
            varying.update(set(node.output) - empty)
    wanted = {value.name for value in graph.output}
    for node in reversed(graph.node):
        if wanted & set(node.output):
            wanted.update(node.input)
    for node in graph.node:
        if wanted & varying & set(node.output):
            assert name_of(node) in described, node
    assert described <= {name_of(node) for node in graph.node}
    assert (varying | empty) & made or not described


def outcome(path, arrays, folder, **options):
    """The results and the stats buffer, or the code of the error."""
    try:
        with qaic.Session(path, output_dir=folder, **options) as session:
            profiler = _core.Profiler([session._ensure_loaded()], device_stats=True)
            profiler.start()
            results = session.run(arrays)
            profiler.stop()
            return results, profiler.drain().stats(0)
    except (CompileError, DeviceError, InferenceError) as error:
        return error.code


def check_program(built, feeds, options):
    with tempfile.TemporaryDirectory() as folder:
        path = session_models.save(Path(folder), built)
        plain = outcome(path, feeds, f"{folder}/plain", stats_level=0, **options)
        measured = outcome(path, feeds, f"{folder}/measured", stats_level=70, **options)
        if isinstance(plain, str):
            assert measured == plain
            return
        (plain, without), (measured, buffer) = plain, measured
        assert without is None
        assert list(measured) == list(plain)
        for name, array in plain.items():
            assert array.tobytes() == measured[name].tobytes()
        program = Path(folder, "measured", "programqpc.bin")
        ops = check_descriptor(program, built)
        # The engine runs each operation once, and all names that it reports are in the descriptor.
        executed = qaic.stats.open(buffer, qpc=program).ops["oc"].tolist()
        assert sorted(executed) == (list(range(len(ops) - 1)) if engine_version.profiles_runs() else [])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(models(), st.sampled_from(PRECISIONS))
def test_random_models(drawn, options):
    built, arrays = drawn
    check_program(built, arrays, options)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(), st.sampled_from([*PRECISIONS, {"convert_to_quantize": True}]))
def test_convolutions_and_their_neighbors(drawn, options):
    built, seed = drawn
    array = np.random.default_rng(seed).standard_normal((1, 3, 6, 6)).astype(np.float32)
    if options.get("convert_to_quantize"):
        options = {**options, "calibration_data": [{"x": array}]}
    check_program(built, {"x": array}, options)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(dynamic_models(), st.integers(0, 2**32))
def test_specializations(drawn, seed):
    built, symbols = drawn
    feeds = feeds_of(built, symbols[0], np.random.default_rng(seed))
    check_program(built, feeds, {"network_specialization_config": symbols})
