"""Decoders that read only the attended part of their caches, and the nodes that are removed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import decoder_model
import qaic
from qaic.compiler.driver import compile_model
from qaic.compiler.ir.graph_walk import DEVICE_DOMAIN
from qaic.compiler.passes.decoding.attention import Role
from qaic.compiler.passes.decoding.context_proof import find_attention
from qaic.compiler.passes.decoding.narrow_context import GRANULE
from qaic.compiler.passes.decoding.state_rows import OPERATOR
from qaic.options import resolve
from single_pass import before, skipped

SIZES = decoder_model.Sizes(layers=2, heads=4, groups=2, width=4, context=1024)


def nodes(model, op_type):
    return [node for node in model.graph.node if node.op_type == op_type]


def constant_of(model, name):
    return next(node for node in model.graph.node if name in node.output).attribute[0]


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("slots", [False, True])
def test_the_roles_of_a_decoder_are_found(slots, window):
    found = find_attention(decoder_model.decoder(decoder_model.Sizes(slots=slots, window=window)).graph)
    assert found.positions == "position_ids"
    assert (len(found.scatters), len(found.gathers), len(found.mixtures)) == (4, 4, 2)
    assert set(Role) - {Role.BY_SLOT} <= set(found.roles.values())


def later_mask(model):
    """The mask lets a position attend to the next one."""
    mask = next(node for node in nodes(model, "Greater") if "Unsqueeze" in node.input[1])
    one = helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.int64(1)))
    moved = helper.make_node("Add", [mask.input[1], "one"], ["moved"])
    at = list(model.graph.node).index(mask)
    mask.input[1] = "moved"
    model.graph.node.insert(at, moved)
    model.graph.node.insert(at, one)


def turned_mask(model):
    """The mask hides the rows before a position."""
    next(node for node in nodes(model, "Greater") if "Unsqueeze" in node.input[1]).op_type = "Less"


def weak_mask(model):
    """Hidden scores are small numbers instead of minus infinity."""
    for node in nodes(model, "ConstantOfShape"):
        node.attribute[0].t.CopyFrom(numpy_helper.from_array(np.array([-9.0], np.float32)))


def values_of_unused_rows(model):
    """Unused rows are replaced by ones."""
    for node in nodes(model, "Where"):
        attribute = constant_of(model, node.input[1]) if "Constant_" in node.input[1] else None
        if attribute is not None and numpy_helper.to_array(attribute.t).dtype == np.float32:
            attribute.t.CopyFrom(numpy_helper.from_array(np.ones((), np.float32)))


def shares_are_an_output(model):
    name = nodes(model, "Softmax")[0].output[0]
    model.graph.output.append(onnx.ValueInfoProto(name=name))


def shares_over_heads(model):
    for node in nodes(model, "Softmax"):
        node.attribute[0].i = 1


def fixed_context(model):
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "ctx_len":
                dim.dim_value = 32


def other_positions(model):
    """One cache is written at another place."""
    model.graph.input.append(
        helper.make_tensor_value_info("places", onnx.TensorProto.INT64, ["batch_size", "seq_len"])
    )
    nodes(model, "CtxScatter")[0].input[1] = "places"


def sum_of_scores(model):
    scores = nodes(model, "Softmax")[0].input[0]
    model.graph.node.append(helper.make_node("ReduceSum", [scores], ["sum"], keepdims=0))
    model.graph.output.append(onnx.ValueInfoProto(name="sum"))


def read_cache(model):
    model.graph.node.append(helper.make_node("Neg", ["past_key.0"], ["negative"]))
    model.graph.output.append(onnx.ValueInfoProto(name="negative"))


@pytest.mark.parametrize(
    "change",
    [
        later_mask,
        turned_mask,
        weak_mask,
        values_of_unused_rows,
        shares_are_an_output,
        shares_over_heads,
        fixed_context,
        other_positions,
        sum_of_scores,
        read_cache,
    ],
)
def test_a_decoder_whose_numbers_might_change_stays_as_it_is(change):
    model = decoder_model.decoder()
    change(model)
    assert isinstance(find_attention(model.graph), str)


def compiled(folder, sizes=SIZES, **options):
    given = {
        "network_specialization_config": decoder_model.specializations(8, context=sizes.context),
        "retained_state": True,
        **options,
    }
    found = resolve(given, options_path=None, model_is_container=False)
    model = decoder_model.decoder(sizes)
    return qaic.Qpc(compile_model(model, found.compile, found.set_compile, output_dir=folder))


def with_plain_copies(model):
    """Write the operator of the device as the three operators that it replaces, as functions."""
    imports = [helper.make_opsetid("", decoder_model.OPSET)]
    for name, blanked in (("AttendedRows", ["blanked"]), ("AttendedKeys", [])):
        body = decoder_model.Body()
        part = body.add("Slice", "state", body.ints([0]), "length", body.ints([2]))
        last = body.add("ScatterND", part, "indices", "rows")
        if blanked:
            body.add("Where", "blanked", body.constant(np.zeros((), np.float32)), last)
        body.nodes[-1].output[0] = "attended"
        operands = ["state", "length", "indices", "rows", *blanked]
        model.functions.append(
            helper.make_function(DEVICE_DOMAIN, name, operands, ["attended"], body.nodes, imports)
        )
    for node in nodes(model, OPERATOR):
        if not node.input[-1]:
            node.op_type = "AttendedKeys"
            del node.input[-1]
    return model


def made_by_a_step(qpc, folder, position, sizes=SIZES):
    """Run one token in the engine; return the operator and the bytes of every computed value."""
    model = with_plain_copies(onnx.ModelProto.FromString(qpc.graph.tobytes()))
    weights = {name: np.array(array) for name, array in qpc.initializers.items()}
    small = [tensor for tensor in model.graph.initializer if tensor.name not in weights]
    del model.graph.initializer[:]
    model.graph.initializer.extend(small)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    options.intra_op_num_threads = 1
    engine = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    caches = {name: np.zeros(sizes.cache_shape(), np.float32) for name in sizes.caches}
    engine.run(None, {"input_ids": np.array([[1]]), "position_ids": np.array([[position]])} | caches)
    events = json.loads(Path(engine.end_profiling()).read_text())
    return [
        (event["args"]["op_name"], int(event["args"]["output_size"]))
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    ]


def test_a_token_moves_what_is_attended(tmp_path):
    """No value has the size of a cache, and heads are not repeated, for any context."""
    cache = np.prod(SIZES.cache_shape()) * 4
    attended = cache * GRANULE // SIZES.context
    plain = made_by_a_step(compiled(tmp_path / "whole", whole_caches=True), tmp_path, 30)
    assert sum(size >= cache for _, size in plain) >= 5 * len(SIZES.caches)
    qpc = compiled(tmp_path / "narrow")
    made = made_by_a_step(qpc, tmp_path, 30)
    # Views of a value share its memory.
    large = [(kind, size) for kind, size in made if size >= attended and kind not in {"Unsqueeze", "Reshape"}]
    # A slice of each cache, the written row in the slice, and values with cleared unused rows.
    assert {size for _, size in large} == {attended}
    layers = SIZES.layers
    assert Counter(kind for kind, _ in large) == {
        "Slice": 2 * layers,
        "ScatterND": 2 * layers,
        "Where": layers,
    }
    assert sum(size for _, size in made) < sum(size for _, size in plain) / 8
    # The device makes one copy instead of three: no other node reads a cache or writes rows.
    graph = onnx.ModelProto.FromString(qpc.graph.tobytes()).graph
    readers = [node.op_type for node in graph.node if {*node.input} & {*SIZES.caches}]
    assert Counter(kind for kind in readers if kind != "Shape") == {OPERATOR: 2 * layers}
    assert not [node for node in graph.node if node.op_type in {"ScatterND", "GatherND"}]


def test_what_a_token_makes_is_the_same_with_any_context(tmp_path):
    """With four times the context, the engine computes the same number of values and bytes."""
    longer = replace(SIZES, context=4 * SIZES.context)
    for position in (30, GRANULE, 1000):
        made, more = (
            made_by_a_step(compiled(tmp_path / f"{sizes.context}", sizes), tmp_path, position, sizes)
            for sizes in (SIZES, longer)
        )
        assert made == more
    options = {"whole_caches": True}
    made, more = (
        made_by_a_step(compiled(tmp_path / f"whole{sizes.context}", sizes, **options), tmp_path, 30, sizes)
        for sizes in (SIZES, longer)
    )
    total, larger = (sum(size for _, size in each) for each in (made, more))
    assert 3.5 < larger / total < 4.5


@pytest.mark.parametrize("options", [{}, {"stats_level": 70}])
def test_programs_that_measure_operations_are_narrowed_too(tmp_path, options):
    """Programs that measure operations run the same operations as other programs."""
    qpc = compiled(tmp_path / "measured", **options)
    assert qpc.plan["own_operators"] == [OPERATOR]
    assert len(qpc.plan["state_rows"]["updates"]) == len(SIZES.caches)


def test_the_reason_for_caches_that_are_read_whole_is_reported():
    proto = decoder_model.decoder(SIZES)
    later_mask(proto)
    (line,) = skipped("narrow-context", *before("narrow-context", proto, retained_state=True))
    assert line.startswith("narrow-context left 4 nodes (first ")
    assert "): whole caches are read: " in line
    options = {"retained_state": True, "execute_nodes_in_fp16": ["Expand"]}
    (line,) = skipped("narrow-context", *before("narrow-context", decoder_model.decoder(SIZES), **options))
    assert line.startswith("narrow-context left 4 nodes (first ")
    assert line.endswith("): whole caches are read: an option sets the precision of Expand")
