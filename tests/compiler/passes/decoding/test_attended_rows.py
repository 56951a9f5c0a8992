"""One operator of the device copies the attended rows of a cache; its operands."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

import decoder_model
import qaic
from compiler_oracle import info, model_of, node
from qaic.compiler.driver import compile_model
from qaic.compiler.ir.graph_walk import DEVICE_DOMAIN, producers
from qaic.compiler.passes.decoding.state_rows import OPERATOR
from qaic.compiler.passes.fuse_elementwise import ELEMENTWISE
from qaic.compiler.passes.legalize.legalize_qualcomm_functions import legalize, unguarded
from qaic.options import resolve
from session_models import save
from single_pass import before, skipped
from state_row_models import writer

SIZES = decoder_model.Sizes(layers=2, heads=4, groups=2, width=4, context=128)


def compiled(sizes, folder, *, slots=None, only_tokens=False, **options):
    sets = decoder_model.specializations(8, context=sizes.context, slots=slots)
    given = {
        "network_specialization_config": sets[1:] if only_tokens else sets,
        "retained_state": True,
        **options,
    }
    found = resolve(given, options_path=None, model_is_container=False)
    model = decoder_model.decoder(sizes)
    qpc = qaic.Qpc(compile_model(model, found.compile, found.set_compile, output_dir=folder))
    return qpc, onnx.ModelProto.FromString(qpc.graph.tobytes()).graph


def copies(graph):
    return [node for node in graph.node if (node.domain, node.op_type) == (DEVICE_DOMAIN, OPERATOR)]


def half_border(sizes):
    caches = [f"{name}{end}" for name in sizes.caches for end in ("", "_RetainedState")]
    return {"custom_io_list_file": [{"IOName": name, "Precision": "float16"} for name in caches]}


@pytest.mark.parametrize("only_tokens", [False, True])
@pytest.mark.parametrize("is_half", [False, True])
def test_each_cache_is_read_by_one_copy(tmp_path, is_half, only_tokens):
    """The operator clears unused rows of values, and converts the float16 of a buffer to float32."""
    options = {"convert_to_fp16": True, **half_border(SIZES)} if is_half else {}
    qpc, graph = compiled(SIZES, tmp_path / "qpc", only_tokens=only_tokens, **options)
    found = {node.input[0]: node for node in copies(graph)}
    assert found.keys() == {*SIZES.caches}
    assert qpc.plan["own_operators"] == [OPERATOR, *([ELEMENTWISE] if is_half else [])]
    assert all(update["skips_outside"] for update in qpc.plan["state_rows"]["updates"])
    assert qpc.plan["inputs"][2]["dtype"] == ("float16" if is_half else "float32")
    for cache, copy in found.items():
        assert bool(copy.input[4]) == ("value" in cache)
        readers = {node.op_type for node in graph.node if cache in node.input}
        assert readers <= {OPERATOR, "Shape"}


def test_caches_with_slots_of_their_own_are_copied_once_too(tmp_path):
    sizes = decoder_model.Sizes(layers=1, context=128, slots=True)
    _, graph = compiled(sizes, tmp_path / "qpc", slots=3)
    assert {node.input[0] for node in copies(graph)} == {*sizes.caches}


def test_a_cache_of_another_type_is_read_by_plain_operators(tmp_path, monkeypatch):
    """The operator supports float32 and float16; bfloat16 uses the original nodes."""
    monkeypatch.setenv("QAIC_CPU_FAMILY", "ai200")
    sizes = decoder_model.Sizes(layers=1, context=128, elem_type=TensorProto.BFLOAT16)
    qpc, graph = compiled(sizes, tmp_path / "qpc", aic_hw_version="ai200")
    assert copies(graph) == []
    assert "own_operators" not in qpc.plan


def test_state_that_is_no_cache_has_no_copy(tmp_path):
    qpc = qaic.Qpc(qaic.compile(save(tmp_path, writer()), retained_state=True))
    assert "own_operators" not in qpc.plan
    assert "skips_outside" not in qpc.plan["state_rows"]["updates"][0]


def test_the_reason_for_a_scatter_that_stays_is_reported():
    name = "copy-attended-rows"
    other = node("ScatterND", ["past", "places", "rows"], ["other"], name="other")
    model = writer(other, outputs=[info("other", [2, 5, 3], TensorProto.FLOAT)])
    (line,) = skipped(name, *before(name, model, retained_state=True))
    assert line.startswith(f"{name} left 1 node (first 'other'): ")
    assert line.endswith(": the scatter does not write float rows to the attended slots of a cache")


def scattering(domain):
    """A function that writes rows and is called once."""
    body = [node("ScatterND", ["data", "at", "rows"], ["written"])]
    function = helper.make_function(
        domain, "Write", ["data", "at", "rows"], ["written"], body, [helper.make_opsetid("", 17)]
    )
    model = model_of(
        [helper.make_node("Write", ["x", "at", "rows"], ["y"], domain=domain)],
        [
            info("x", [4, 3], TensorProto.FLOAT),
            info("at", [2, 1], TensorProto.INT64),
            info("rows", [2, 3], TensorProto.FLOAT),
        ],
        [info("y", [4, 3], TensorProto.FLOAT)],
    )
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


def test_operands_of_a_guarded_scatter_are_found_again():
    """If the device skips rows out of range, their replacements are undone; others do not change."""
    model = scattering("com.qualcomm.cloud")
    assert legalize(model)
    makers = producers(model.functions[0].node)
    scatter = makers["written"]
    indices, rows = unguarded(scatter, makers, {})
    assert rows == "rows"
    assert (makers[indices].op_type, makers[indices].input[0]) == ("Cast", "at")
    # Rows and indices that were selected in different ways do not form a pair.
    chosen = makers[makers[scatter.input[2]].input[0]]
    other = helper.make_node("Where", ["other", "counting", "count"], ["moved"])
    makers["moved"] = other
    chosen.input[1] = "moved"
    assert unguarded(scatter, makers, {}) is None
    plain = scattering("pkg.other").functions[0].node[0]
    assert unguarded(plain, producers([plain]), {}) is None
