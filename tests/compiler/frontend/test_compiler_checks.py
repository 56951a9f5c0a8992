import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from compiler_oracle import FLOAT, info, lowered, model_of, node
from qaic.compiler.backend.descriptor import batch_of, dma_buffers, network_descriptor, place
from qaic.compiler.ir.interface import TensorSpec
from qaic.errors import CompileError


def identity(value):
    output = type(value).FromString(value.SerializeToString())
    output.name = "y"
    return model_of([node("Identity", ["x"], ["y"])], [value], [output])


@pytest.mark.parametrize(
    ("elem_type", "name"),
    [
        (TensorProto.DOUBLE, "float64"),
        (TensorProto.STRING, "string"),
        (TensorProto.UINT16, "uint16"),
        (TensorProto.UINT32, "uint32"),
        (TensorProto.UINT64, "uint64"),
        (TensorProto.COMPLEX64, "complex64"),
    ],
)
def test_edge_types_without_a_buffer_type_are_refused_by_name(elem_type, name):
    with pytest.raises(CompileError, match=f"input 'x': found type {name}") as caught:
        lowered(identity(info("x", [2], elem_type)))
    assert caught.value.code == "compile.unsupported_type"


def test_a_bfloat16_edge_is_one_of_the_hardware_that_has_it():
    model = identity(info("x", [2], TensorProto.BFLOAT16))
    with pytest.raises(CompileError, match="tensor 'x': found type bfloat16") as caught:
        lowered(model)
    assert caught.value.code == "compile.unsupported_type"
    assert "aic_hw_version=ai200" in str(caught.value.hints)
    assert lowered(model, aic_hw_version="ai200").inputs == (TensorSpec("x", TensorProto.BFLOAT16, (2,)),)


@pytest.mark.parametrize("name", ["float32", "float16", "int8", "uint8", "int16", "int32", "int64", "bool"])
def test_every_buffer_type_is_accepted(name):
    elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(name))
    program = lowered(identity(info("x", [2, 0, 3], elem_type)))
    assert program.inputs == (TensorSpec("x", elem_type, (2, 0, 3)),)
    assert program.inputs[0].dtype == name


def test_wider_types_are_allowed_inside():
    model = model_of(
        [node("Cast", ["x"], ["d"], to=TensorProto.DOUBLE), node("Cast", ["d"], ["y"], to=FLOAT)],
        [info("x", [2])],
        [info("y", [2])],
    )
    assert lowered(model).outputs[0].dims == (2,)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (helper.make_tensor_sequence_value_info("x", FLOAT, [2]), "a sequence"),
        (
            helper.make_value_info(
                "x", helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
            ),
            "an optional",
        ),
        (helper.make_value_info("x", helper.make_sparse_tensor_type_proto(FLOAT, [2])), "a sparse tensor"),
        (
            helper.make_value_info(
                "x",
                helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(FLOAT, [2])),
            ),
            "a map",
        ),
    ],
)
def test_edges_that_are_no_tensors_are_refused(value, text):
    with pytest.raises(CompileError, match=f"input 'x': found {text}"):
        lowered(identity(value))


def test_more_than_eight_dims_are_refused():
    with pytest.raises(CompileError, match="found 9 dims, expected at most 8"):
        lowered(identity(info("x", [1] * 9)))


def test_edge_larger_than_a_buffer_is_refused():
    with pytest.raises(CompileError, match="expected at most 4294967295 bytes"):
        lowered(identity(info("x", [1 << 15, 1 << 15])))


def test_all_unknown_operators_are_listed_at_once():
    model = model_of(
        [
            node("Rellu", ["x"], ["a"]),
            node("Thing", ["a"], ["b"], domain="org.else"),
            node("Sofftmax", ["b"], ["y"]),
        ],
        [info("x", [1])],
        [info("y", [1])],
    )
    with pytest.raises(CompileError, match=r"Rellu.*Sofftmax.*org\.else\.Thing") as caught:
        lowered(model)
    assert caught.value.code == "compile.unsupported_operator"
    assert caught.value.context["operators"] == ["Rellu", "Sofftmax", "org.else.Thing"]
    assert "(node 'a': not in version " in caught.value.message
    assert "; did you mean Relu?)" in caught.value.message


def test_newer_operator_set_than_known_is_refused():
    model = model_of([node("Relu", ["x"], ["y"])], [info("x", [1])], [info("y", [1])], opset=99)
    with pytest.raises(CompileError, match=r"version 99 of ai\.onnx") as caught:
        lowered(model)
    assert caught.value.code == "compile.unsupported_opset"


def test_model_without_operator_set_is_refused():
    model = model_of([node("Relu", ["x"], ["y"])], [info("x", [1])], [info("y", [1])])
    del model.opset_import[:]
    with pytest.raises(CompileError, match="at least one opset_import"):
        lowered(model)
    # The compiler assumes no version for a standard operator.
    model.opset_import.add(domain="ai.onnx.ml", version=3)
    with pytest.raises(CompileError, match="Relu"):
        lowered(model)


def test_operator_that_does_not_fit_its_inputs_is_named():
    model = model_of([node("MatMul", ["x", "x"], ["y"])], [info("x", [2, 3])], [info("y", None)])
    with pytest.raises(CompileError, match="MatMul") as caught:
        lowered(model)
    assert caught.value.code == "compile.contradicting_sizes"


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Relu", ["a"], ["y"]), node("Relu", ["x"], ["a"])],
        [node("Relu", ["x"], ["y"]), node("Relu", ["x"], ["y"])],
        [node("Relu", ["x", "x"], ["y"])],
    ],
    ids=["order", "twice", "arity"],
)
def test_broken_structure_is_refused(nodes):
    model = model_of(nodes, [info("x", [2, 3])], [info("y", None)])
    with pytest.raises(CompileError):
        lowered(model)


def edges(*sizes):
    return [TensorSpec(f"t{i}", TensorProto.INT8, (size,)) for i, size in enumerate(sizes)]


def test_a_key_of_the_metadata_may_stand_twice():
    """Exporters add their entry again when they change a file, and onnx.checker refuses such a model."""
    model = model_of([node("Relu", ["x"], ["y"])], [info("x", [2])], [info("y", [2])])
    for value in ("first", "second"):
        model.metadata_props.append(onnx.StringStringEntryProto(key="transforms", value=value))
    assert lowered(model).outputs[0].dims == (2,)


def test_combined_tensors_start_at_cache_lines():
    assert place(edges(1, 64, 0, 65), 3, combine=True) == (((3, 0), (3, 64), (3, 128), (3, 128)), (256,))


def test_separate_tensors_have_a_buffer_each():
    assert place(edges(1, 65), 1, combine=False) == (((1, 0), (2, 0)), (64, 128))


def test_tensors_too_large_together_are_not_combined():
    assert place(edges(3 << 30, 3 << 30), 0, combine=True)[0] == ((0, 0), (1, 0))
    assert place(edges(0xFFFF_FFFF), 0, combine=True)[1] == (0xFFFF_FFFF,)


def test_program_without_inputs_has_no_input_buffer():
    assert place([], 0, combine=True) == place([], 0, combine=False) == ((), ())


def test_descriptor_of_quantized_types_carries_scale_and_offset():
    inputs = [
        TensorSpec("u", TensorProto.UINT8, (2,)),
        TensorSpec("s", TensorProto.INT16, ()),
        TensorSpec("b", TensorProto.BOOL, (1,)),
    ]
    outputs = [TensorSpec("f", FLOAT, (4, 0))]
    buffers = dma_buffers(inputs, outputs, combine_inputs=True, combine_outputs=True)
    desc = network_descriptor("n", inputs, outputs, buffers, cores=2, batch=1)
    described = [
        (b["io_initial"]["type"], b["io_initial"]["qscale"], b["io_initial"]["qoffset"], b["align"])
        for b in desc["inputs"]
    ]
    assert described == [(3, 1.0, -128, 1), (4, 1.0, 0, 2), (8, 0.0, 0, 1)]
    (copy,) = desc["outputs"][0]["transformseq"]
    assert copy["copy_dma_buffer"] == {"dir": 1, "offset": 0, "buffer_num": 1}
    assert "align" not in desc["outputs"][0]
    assert desc["dma_buffers"] == [{"size": 192, "dir": 0}, {"size": 64, "dir": 1}]


def test_batch_is_the_first_dim_all_inputs_share():
    assert (
        batch_of([TensorSpec("a", FLOAT, (4, 2)), TensorSpec("b", FLOAT, (4,)), TensorSpec("c", FLOAT, ())])
        == 4
    )
    assert batch_of([TensorSpec("a", FLOAT, (4, 2)), TensorSpec("b", FLOAT, (3,))]) == 1
    assert batch_of([TensorSpec("a", FLOAT, (0,))]) == 1
    assert batch_of([]) == 1


def test_rejects_a_model_without_outputs():
    with pytest.raises(CompileError, match="no outputs") as caught:
        lowered(model_of([node("Neg", ["x"], ["y"])], [info("x", [2])], []))
    assert caught.value.code == "compile.no_outputs"


@pytest.mark.parametrize("name", ["", "mine"])
def test_broken_rules_name_the_node(name):
    leaving_out = node("Dropout", ["x"], ["", "y"], name=name)
    model = model_of([leaving_out], [info("x", [2])], [info("y", [2], TensorProto.BOOL)])
    with pytest.raises(CompileError, match=rf"a broken rule .Node \({name or 'y'}\)") as caught:
        lowered(model)
    assert caught.value.code == "compile.invalid_model"


def test_a_broken_rule_is_one_line():
    model = model_of([node("MatMul", ["x", "missing"], ["y"])], [info("x", [1, 2])], [info("y", [1, 2])])
    with pytest.raises(
        CompileError, match=r"input 'missing' of node: name: (.* )?OpType: MatMul is not"
    ) as caught:
        lowered(model)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", ["", "mine"])
def test_contradictions_that_onnx_finds_name_the_node(name):
    """A classifier without its second result ends the shape inference of onnx."""
    attributes = {"coefficients": [1.0, 2.0], "intercepts": [0.5], "classlabels_ints": [3, 4]}
    classifier = node("LinearClassifier", ["x"], ["y"], name=name, domain="ai.onnx.ml", **attributes)
    model = model_of([classifier], [info("x", [3, 2])], [info("y", [3], TensorProto.INT64)])
    with pytest.raises(
        CompileError, match=rf"node '{name or 'y'}' \(LinearClassifier\): found a contradiction \(Output 1 "
    ):
        lowered(model)
