"""State that stays on the device, at the interface of the program."""

import pytest
from onnx import TensorProto

from compiler_oracle import info, model_of, node
from qaic.errors import CompileError
from single_pass import applied, before, content

NAME = "check-retained-state"


def state(result=None, shape=(2, 3), name="past_RetainedState"):
    nodes = [node("Cast", ["past"], ["c"], to=result or TensorProto.FLOAT), node("Identity", ["c"], [name])]
    return model_of(nodes, [info("past", shape)], [info(name, None, result or TensorProto.FLOAT)])


def test_pair_of_one_type_and_shape_is_state():
    model, context = before(NAME, state(), retained_state=True)
    found = content(model)
    for _ in range(2):
        assert not applied(NAME, model, context)
    assert content(model) == found


def test_pass_is_needed_where_there_is_state():
    _, context = before(NAME, state())
    with pytest.raises(AssertionError):
        applied(NAME, *before(NAME, state()))
    assert not context.options.retained_state


def test_pair_of_two_types_is_refused():
    model, context = before(NAME, state(TensorProto.FLOAT16), retained_state=True)
    with pytest.raises(CompileError, match=r"float16 \[2, 3\].*float32 \[2, 3\] as for input 'past'"):
        applied(NAME, model, context)


def test_state_of_two_sizes_is_refused(tmp_path):
    file = tmp_path / "sets.json"
    file.write_text('{"specializations": [{"n": "2"}, {"n": "4"}]}')
    options = {"retained_state": True, "network_specialization_config": str(file)}
    model, context = before(NAME, state(shape=("n", 3)), **options)
    with pytest.raises(CompileError, match="all specializations share the state"):
        applied(NAME, model, context)


@pytest.mark.parametrize(
    ("name", "said"), [("other_RetainedState", "has no input 'other'"), ("y", "it has no state")]
)
def test_output_without_its_input_is_a_plain_one(caplog, name, said):
    model, context = before(NAME, state(name=name), retained_state=True)
    applied(NAME, model, context)
    assert said in caplog.text
