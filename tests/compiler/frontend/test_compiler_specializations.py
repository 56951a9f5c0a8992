import json
import logging
import re

import numpy as np
import pytest
from onnx import TensorProto

from compiler_oracle import info, lowered, model_of, node, run, run_fp16, whole
from qaic import _core
from qaic.cli.qpc.facts import facts
from qaic.cli.qpc.text import info_text
from qaic.compiler.driver import compile_model
from qaic.errors import CompileError, OptionError
from qaic.options.codecs.scalars import ValueMismatchError
from qaic.options.codecs.structures import ModelInput
from qaic.options.files.partitions import Partitions
from qaic.options.files.specializations import Specializations
from qaic.options.table import CompileOptions
from qaic.qpc import Qpc


def entries(*symbols, **named):
    """Specializations as flat entries, or as names with symbols."""
    given = [*symbols, *({"name": name, "symbols": values} for name, values in named.items())]
    return {"network_specialization_config": Specializations().content(given)}


TWO = entries(Long={"batch": 1, "seq": 6}, Wide={"batch": 3, "seq": 2})
RNG = np.random.default_rng(5)
WEIGHT = RNG.standard_normal((4, 5), dtype=np.float32)
BIAS = RNG.standard_normal(5, dtype=np.float32)


def symbolic(**changes):
    """Build a model whose result depends on the shapes: y = flatten(relu(x @ w + b) * seq)."""
    shapes = {"x": ["batch", "seq", 4], "y": None} | changes
    return model_of(
        [
            node("MatMul", ["x", "w"], ["m"]),
            node("Add", ["m", "b"], ["a"]),
            node("Relu", ["a"], ["r"]),
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "one"], ["seq"]),
            node("Cast", ["seq"], ["seq_float"], to=TensorProto.FLOAT),
            node("Mul", ["r", "seq_float"], ["p"]),
            node("Flatten", ["p"], ["y"], axis=1),
        ],
        [info("x", shapes["x"])],
        [info("y", shapes["y"])],
        [("w", WEIGHT), ("b", BIAS), ("one", np.int64(1))],
    )


def stateful(past=("batch", 4), retained=("batch", 4), row=("batch", "seq", 4), kind=TensorProto.FLOAT):
    """Build a model that adds the sum of its input to its state."""
    return model_of(
        [
            node("ReduceSum", ["x", "axis"], ["rows"], keepdims=0),
            node("Add", ["past", "rows"], ["sum"]),
            node("Cast", ["sum"], ["past_RetainedState"], to=kind),
            node("Neg", ["sum"], ["y"]),
        ],
        [info("x", row), info("past", past)],
        [info("y", None), info("past_RetainedState", retained, kind)],
        [("axis", np.int64([1]))],
    )


def test_edges_are_the_largest_and_variants_keep_the_order():
    program = lowered(symbolic(), **TWO)
    assert [(spec.name, spec.dims) for spec in (*program.inputs, *program.outputs)] == [
        ("x", (3, 6, 4)),
        ("y", (3, 30)),
    ]
    assert [(v.name, v.inputs, v.outputs) for v in program.specializations] == [
        ("Long", ((1, 6, 4),), ((1, 30),)),
        ("Wide", ((3, 2, 4),), ((3, 10),)),
    ]


@pytest.mark.parametrize("convert", [False, True])
def test_one_graph_computes_every_variant(convert):
    program = whole(lowered(symbolic(), convert_to_fp16=convert, **TWO))
    for batch, seq in ((1, 6), (3, 2)):
        x = RNG.standard_normal((batch, seq, 4), dtype=np.float32)
        symbols = {"batch": batch, "seq": seq}
        static = whole(lowered(symbolic(), convert_to_fp16=convert, onnx_define_symbol=symbols))
        np.testing.assert_array_equal(run(program, {"x": x})["y"], run(static, {"x": x})["y"])


def test_dims_equal_in_all_variants_are_fixed_in_the_graph():
    given = entries({"batch": 2, "seq": 1}, {"batch": 2, "seq": 3})
    graph = lowered(symbolic(), **given).model.graph
    dims = graph.input[0].type.tensor_type.shape.dim
    assert [(dim.dim_value, dim.dim_param) for dim in dims] == [(2, ""), (0, "seq"), (4, "")]
    dims = graph.output[0].type.tensor_type.shape.dim
    assert [(dim.dim_value, dim.dim_param) for dim in dims] == [(2, ""), (0, "")]


def test_one_entry_is_a_program_of_fixed_shapes():
    program = lowered(symbolic(), **entries({"batch": 2, "seq": 3}))
    assert program.specializations == ()
    assert program.inputs[0].dims == (2, 3, 4)


def test_entries_win_over_symbols_that_hold_for_all():
    given = entries({"seq": 1}, {"seq": 3, "batch": 7})
    program = lowered(symbolic(), onnx_define_symbol={"batch": 2, "seq": 9}, **given)
    assert [specialization.inputs[0] for specialization in program.specializations] == [(2, 1, 4), (7, 3, 4)]


def test_symbol_without_a_value_is_refused_with_its_specialization():
    given = entries(Prefill={"batch": 1, "seq": 2}, Decode={"seq": 1})
    with pytest.raises(CompileError, match=r"specialization 'Decode', input 'x'.*symbol 'batch'") as caught:
        lowered(symbolic(), **given)
    assert caught.value.code == "compile.unbound_symbol"
    assert caught.value.context["specialization"] == "Decode"
    assert "onnx_define_symbol" in caught.value.hints[0]
    with pytest.raises(CompileError, match="specialization 'Graph_0', input 'x'"):
        lowered(symbolic(), **entries({"batch": 1}))


def test_symbol_the_model_lacks_is_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        lowered(symbolic(), **entries({"batch": 1, "seq": 2, "context": 5}, {"batch": 1, "seq": 1}))
    assert "no symbols 'context'" in caplog.text


def test_unnamed_dimension_is_refused_also_with_specializations():
    with pytest.raises(CompileError, match=r"no number for dim 2 of its shape \[1, 2, \?\]"):
        lowered(symbolic(x=["batch", "seq", None]), **entries({"batch": 1, "seq": 2}, {"batch": 1, "seq": 1}))


def test_model_inputs_hold_for_all_specializations():
    spec = (ModelInput("x", "float32", (1, 6, 4)),)
    with pytest.raises(OptionError, match="the symbol 'batch' the value 1, but it already has 3"):
        lowered(symbolic(), model_inputs=spec, **TWO)


def test_equal_input_shapes_are_refused():
    with pytest.raises(OptionError, match=r"'A' and 'C' give all inputs the same shapes"):
        lowered(
            symbolic(),
            **entries(A={"batch": 1, "seq": 2}, B={"batch": 1, "seq": 1}, C={"batch": 1, "seq": 2, "z": 1}),
        )


def test_output_whose_rank_differs_is_refused():
    model = model_of([node("Squeeze", ["x"], ["y"])], [info("x", ["n", 3])], [info("y", None)])
    with pytest.raises(CompileError, match=r"output 'y': found 1 dim in specialization 'Graph_0' and 2 in"):
        lowered(model, **entries({"n": 1}, {"n": 2}))


def test_output_that_depends_on_data_is_refused():
    model = model_of(
        [node("NonZero", ["x"], ["y"])], [info("x", ["n"])], [info("y", None, TensorProto.INT64)]
    )
    with pytest.raises(CompileError, match="only known when the program runs"):
        lowered(model, **entries({"n": 1}, {"n": 2}))


def test_buffers_of_the_largest_dims_must_be_possible():
    model = model_of([node("Identity", ["x"], ["y"])], [info("x", ["n", "m"])], [info("y", ["n", "m"])])
    with pytest.raises(CompileError, match="found 4294967296 bytes"):
        lowered(model, **entries({"n": 1 << 15, "m": 1}, {"n": 1, "m": 1 << 15}))


def test_bias_of_a_matrix_product_is_fused_as_with_fixed_shapes():
    # The product and its bias are rounded once; another rounding between them would change the last bits.
    for batch, seq in ((1, 6), (3, 2)):
        x = RNG.standard_normal((batch, seq, 4), dtype=np.float32)
        symbols = {"batch": batch, "seq": seq}
        expected = run_fp16(symbolic(), {"x": x}, onnx_define_symbol=symbols)["y"]
        np.testing.assert_array_equal(run_fp16(symbolic(), {"x": x}, **TWO)["y"], expected)
    casts = [n.output[0] for n in lowered(symbolic(), convert_to_fp16=True, **TWO).model.graph.node]
    assert not any(name.startswith("m/") for name in casts)


def compiled(model, set_options=None, **options):
    return Qpc(compile_model(model, CompileOptions(**options), set_options or {}))


def test_container_lists_the_shapes_and_sizes_buffers_by_the_largest(tmp_path):
    program = compiled(symbolic(), **TWO)
    network = program.network_descriptor
    assert network["inputs"][0]["io_initial"]["dims"] == [3, 6, 4]
    assert [[shape["dims"] for shape in entry["shapes"]] for entry in network["allowed_shapes"]] == [
        [[1, 6, 4], [1, 30]],
        [[3, 2, 4], [3, 10]],
    ]
    # The other bindings are for statistics and control.
    assert [buffer["size"] for buffer in network["dma_buffers"]][:-2] == [320, 384]
    assert program.plan["version"] == 2
    assert program.plan["variants"][1] == {
        "name": "Wide",
        "symbols": {"batch": 3, "seq": 2},
        "inputs": [[3, 2, 4]],
        "outputs": [[3, 10]],
    }
    assert program.validate() == []


def test_large_weights_are_checked_with_several_shapes(caplog):
    weight = np.zeros((4, 500), np.float32)
    model = model_of(
        [node("MatMul", ["x", "w"], ["y"])], [info("x", ["n", 4])], [info("y", None)], [("w", weight)]
    )
    program = compiled(model, **entries({"n": 1}, {"n": 2}))
    assert len(program.initializers) == 1
    _core.check_program(str(program.path))


def test_specializations_have_entries_of_their_own_in_the_cache():
    one = compiled(symbolic(), **TWO)
    other = compiled(symbolic(), **entries(Long={"batch": 1, "seq": 6}, Wide={"batch": 3, "seq": 1}))
    renamed = compiled(symbolic(), **entries(Long={"batch": 1, "seq": 6}, Broad={"batch": 3, "seq": 2}))
    again = compiled(symbolic(), **TWO)
    assert len({one.path, other.path, renamed.path}) == 3
    assert again.path == one.path


def test_programs_without_these_options_do_not_mention_them():
    plan = compiled(symbolic(), onnx_define_symbol={"batch": 1, "seq": 2}).plan
    assert plan["version"] == 1
    assert not {"variants", "retained_state", "devices"} & plan.keys()
    assert not {"network_specialization_config", "retained_state"} & plan["effective"].keys()


def test_retained_state_is_recorded():
    program = compiled(
        stateful(), retained_state=True, **entries({"batch": 2, "seq": 3}, {"batch": 2, "seq": 1})
    )
    assert program.plan["retained_state"] is True
    assert program.plan["version"] == 2
    fixed = compiled(stateful(), retained_state=True, onnx_define_symbol={"batch": 2, "seq": 3})
    assert fixed.plan["version"] == 2


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (
            stateful(kind=TensorProto.FLOAT16),
            r"found float16 \[2, 4\], expected float32 \[2, 4\] as for input 'past'",
        ),
        (stateful(past=(1, 4), retained=(2, 4)), r"found float32 \[2, 4\], expected float32 \[1, 4\]"),
    ],
)
def test_state_that_does_not_fit_its_input_is_refused(model, text):
    with pytest.raises(CompileError, match=f"output 'past_RetainedState': {text}") as caught:
        lowered(model, retained_state=True, onnx_define_symbol={"batch": 2, "seq": 3})
    assert caught.value.code == "compile.retained_state"
    lowered(model, onnx_define_symbol={"batch": 2, "seq": 3})


def test_state_of_different_shapes_is_refused_with_both_specializations():
    given = entries(Prefill={"batch": 1, "seq": 3}, Decode={"batch": 2, "seq": 1})
    with pytest.raises(CompileError, match=r"state 'past'.*\[1, 4\].*'Prefill'.*\[2, 4\] in 'Decode'"):
        lowered(stateful(), retained_state=True, **given)
    lowered(stateful(), **given)


def test_state_that_fits_only_at_the_largest_is_refused():
    model = stateful(past=("a", 4), row=("b", "seq", 4))
    given = entries({"a": 1, "b": 2, "seq": 1}, {"a": 2, "b": 2, "seq": 2})
    with pytest.raises(CompileError, match="in specialization 'Graph_0': found the shape") as caught:
        lowered(model, retained_state=True, **given)
    assert caught.value.code == "compile.retained_state"


def test_model_without_state_is_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        lowered(symbolic(), retained_state=True, onnx_define_symbol={"batch": 1, "seq": 1})
    assert "it has no state" in caplog.text
    model = model_of(
        [node("Neg", ["x"], ["z_RetainedState"])], [info("x", [1])], [info("z_RetainedState", [1])]
    )
    with caplog.at_level(logging.WARNING):
        lowered(model, retained_state=True)
    assert "output 'z_RetainedState' has no input 'z'" in caplog.text


def partitions(*nodes):
    content = {
        "partitions": [
            {"name": f"P{i}", "devices": [{"deviceId": i}], "nodeList": list(names)}
            for i, names in enumerate(nodes)
        ]
    }
    return Partitions().content(content)


def chain():
    return model_of(
        [node("Neg", ["x"], ["a"], name="first"), node("Abs", ["a"], ["y"], name="second")],
        [info("x", [2])],
        [info("y", [2])],
    )


def test_devices_are_recorded_and_shown():
    program = compiled(chain(), mdp_load_partition_config=partitions(["first"], ["second"]))
    assert program.plan["devices"] == 2
    assert re.search(r"(?m)^devices +2, used as one$", info_text(facts(program)))
    assert "devices " not in info_text(facts(compiled(chain())))
    assert program.plan["effective"]["mdp_load_partition_config"]["partitions"][1]["nodeList"] == ["second"]


def test_partitions_against_the_flow_are_refused():
    with pytest.raises(CompileError, match=r"node 'second' of partition 'P0'.*later partition 'P1'"):
        lowered(chain(), mdp_load_partition_config=partitions(["second"], ["first"]))


def test_unknown_nodes_of_partitions_are_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        lowered(chain(), mdp_load_partition_config=partitions(["first", "gone"], ["second", "lost"]))
    assert (
        "a card's compiler refuses this model: names in mdp_load_partition_config that are not nodes"
        in caplog.text
    )
    assert "'gone', 'lost'" in caplog.text


def test_bytes_do_not_depend_on_the_spelling(tmp_path, monkeypatch):
    forms = [
        [{"name": "Decode", "symbols": {"seq": "1", "batch": "2"}}, {"batch": 2, "seq": 5}],
        [{"name": "Decode", "symbols": {"batch": 2, "seq": 1}}, {"seq": "5", "batch": "2"}],
    ]
    found = []
    for number, form in enumerate(forms):
        monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / str(number)))
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps({"specializations": form}))
        values = Specializations().load(Specializations().parse(path))
        stored = {"network_specialization_config": Specializations().to_json(values)}
        program = compiled(symbolic(), stored, network_specialization_config=values)
        found.append(program.path.read_bytes())
    assert found[0] == found[1]


def test_graph_names_name_the_sets_of_shapes_or_the_program():
    program = lowered(symbolic(), **TWO, graph_names=("prefill", "decode"))
    assert [specialization.name for specialization in program.specializations] == ["prefill", "decode"]
    single = lowered(symbolic(), onnx_define_symbol={"batch": 1, "seq": 2}, graph_names=("model",))
    assert single.name == "model"


@pytest.mark.parametrize("names", [("one",), ("one", "two", "three")])
def test_as_many_graph_names_as_graphs_are_expected(names):
    with pytest.raises(OptionError, match=rf"has {len(names)} names?.*has 2 graphs") as caught:
        lowered(symbolic(), **TWO, graph_names=names)
    assert caught.value.code == "option.graph_names"


def batching_decoder_shapes():
    """Build y = relu(x) with a named inner size, as exporters write it."""
    model = model_of([node("Relu", ["x"], ["r"]), node("Abs", ["r"], ["y"])], [], [])
    model.graph.input.append(info("x", ["batch_size", "seq_len"]))
    model.graph.output.append(info("y", ["batch_size", "seq_len"]))
    model.graph.value_info.append(info("r", ["ReluR_dim_0", "ReluR_dim_1"]))
    return model


#: Sizes for continuous batching with compute context lengths, in addition to the sizes of the inputs.
OF_EXPORTERS = ["full_batch_size", "full_batch_exec_size", "ctx_len", "comp_ctx_lengths", "sliding_window"]


@pytest.mark.parametrize("extra", [*OF_EXPORTERS, "vision_size", "grid_height", "num_logits_to_keep"])
def test_sizes_that_exporters_always_write_are_no_warning(extra, caplog):
    given = entries(
        Prefill={"batch_size": 1, "seq_len": 8, extra: 1}, Decode={"batch_size": 4, "seq_len": 1, extra: 1}
    )
    with caplog.at_level(logging.WARNING):
        program = lowered(batching_decoder_shapes(), **given)
    assert caplog.messages == []
    assert [specialization.inputs for specialization in program.specializations] == [((1, 8),), ((4, 1),)]


def test_an_unknown_symbol_is_shown_beside_those_of_the_inputs_alone(caplog):
    with caplog.at_level(logging.WARNING):
        lowered(
            batching_decoder_shapes(),
            **entries({"batch_size": 1, "seq_len": 8, "batch_siz": 2, "ctx_len": 9}),
        )
        lowered(
            batching_decoder_shapes(), onnx_define_symbol={"batch_size": 1, "seq_len": 8, "ctx_length": 2}
        )
    assert caplog.messages == [
        "network_specialization_config: the model has no symbols 'batch_siz'; its symbols are: "
        "'batch_size', 'seq_len'",
        "onnx_define_symbol: the model has no symbol 'ctx_length'; its symbols are: 'batch_size', 'seq_len'",
    ]


def test_a_flat_entry_may_bring_its_name():
    found = Specializations().content(
        [{"_graph_name": "Encoder", "seq_len": 1}, {"_graph_name": "Decode", "seq_len": 1}, {"seq_len": "8"}]
    )
    assert [(entry.name, entry.symbols) for entry in found] == [
        ("Encoder", {"seq_len": 1}),
        ("Decode", {"seq_len": 1}),
        ("Prefill", {"seq_len": 8}),
    ]
    with pytest.raises(ValueMismatchError, match="text as the name of specialization 0"):
        Specializations().content([{"_graph_name": 3, "seq_len": 1}])
