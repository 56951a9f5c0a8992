"""Operands of unknown types; without the guards of inference, some of these tests end the process."""

import numpy as np
import pytest
from onnx import AttributeProto, TensorProto, ValueInfoProto, defs, helper, shape_inference

from compiler_oracle import PLACES, as_branches, info, lowered, model_of, node, run, whole
from qaic.compiler.ir.operand_ranks import infer_with_valid_ranks
from qaic.errors import CompileError

KINDS = AttributeProto
VALUES = {
    KINDS.INT: 1,
    KINDS.FLOAT: 1.0,
    KINDS.STRING: "a",
    KINDS.INTS: [1, 1],
    KINDS.FLOATS: [1.0],
    KINDS.STRINGS: ["a"],
    KINDS.TENSOR: helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0]),
    KINDS.GRAPH: helper.make_graph(
        [helper.make_node("Identity", ["i"], ["o"])], "b", [info("i", None)], [info("o", None)]
    ),
}


def behind_unknown(schema, names, operands, results):
    """Build a node of an operator, after nodes that inference does not know."""
    attributes = {name: VALUES[int(schema.attributes[name].type.value)] for name in names}
    node = helper.make_node(
        schema.name,
        [f"h{at}" for at in range(operands)],
        [f"y{at}" for at in range(results)],
        domain=schema.domain,
        **attributes,
    )
    unknown = [helper.make_node("Unknown", ["x"], [name], domain="unknown") for name in node.input]
    outputs = [ValueInfoProto(name=name) for name in node.output]
    sets = {"": 17, schema.domain: schema.since_version, "unknown": 1}
    return helper.make_model(
        helper.make_graph([*unknown, node], "g", [info("x", [2, 3])], outputs),
        opset_imports=[helper.make_opsetid(*entry) for entry in sets.items()],
    )


def test_no_operator_behind_an_unknown_type_ends_inference():
    """All operators of all sets, with required attributes only, with each optional one, and with all."""
    known = [schema for schema in defs.get_all_schemas_with_history() if not schema.deprecated]
    assert len(known) > 500
    for schema in known:
        settable = [
            name for name, attribute in schema.attributes.items() if int(attribute.type.value) in VALUES
        ]
        needed = [name for name in settable if schema.attributes[name].required]
        for names in {
            tuple(needed),
            tuple(settable),
            *((*needed, name) for name in settable if name not in needed),
        }:
            operands, results = max(1, schema.min_input), max(1, schema.min_output)
            model = behind_unknown(schema, names, operands, results)
            found = infer_with_valid_ranks(model)
            assert found.graph.node == model.graph.node
            assert found.opset_import == model.opset_import


CODES = {"keys_floats": [0.0], "values_floats": [7.0], "default_float": 3.0, "domain": "ai.onnx.ml"}
READERS = {
    "EyeLike": (node("EyeLike", ["h"], ["y"], dtype=TensorProto.INT32), np.eye(2, 3, dtype=np.int32)),
    "LabelEncoder": (node("LabelEncoder", ["h"], ["y"], **CODES), np.full((2, 3), 7, np.float32)),
}


@pytest.mark.parametrize("place", [*PLACES.values(), as_branches])
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_of_an_unknown_type_compiles(reader, place):
    last, expected = READERS[reader]
    kind = helper.np_dtype_to_tensor_dtype(expected.dtype)
    nodes = [node("FastGelu", ["x"], ["h"], domain="com.microsoft"), last]
    model = place(model_of(nodes, [info("x", [2, 3])], [info("y", [2, 3], kind)]))
    x = np.zeros((2, 3), np.float32)
    np.testing.assert_array_equal(run(whole(lowered(model)), {"x": x})["y"], expected)


@pytest.mark.parametrize(
    ("op", "operands", "opset"),
    [("Einsum", "s", 17), ("Einsum", "xs", 17), ("GRU", "nnn", 6), ("LSTM", "nnn", 6), ("RNN", "nnn", 6)],
)
def test_operands_of_other_kinds_are_refused(op, operands, opset):
    attributes = {"equation": "ij->ji"} if op == "Einsum" else {"hidden_size": 2}
    nodes = [node("SequenceConstruct", ["x"], ["s"])] if "s" in operands else []
    nodes.append(node(op, [*operands], ["y"], **attributes))
    model = model_of(nodes, [info("x", [2, 3]), info("n", [])], [info("y", None)], opset=opset)
    with pytest.raises(CompileError, match=op):
        lowered(model)


@pytest.mark.parametrize("place", [*PLACES.values(), as_branches])
def test_readers_of_known_types_are_inferred(place):
    """The second node gets the type of its operand from the first node."""
    # Inference writes the domain of a node that it has hidden.
    first = node("EyeLike", ["x"], ["h"], dtype=TensorProto.INT32, domain="")
    nodes = [first, node("EyeLike", ["h"], ["y"], domain="")]
    model = place(model_of(nodes, [info("x", [2, 3])], [ValueInfoProto(name="y")]))
    found = infer_with_valid_ranks(model)
    assert found == shape_inference.infer_shapes(model)
    assert found.graph.output == [info("y", [2, 3], TensorProto.INT32)]
