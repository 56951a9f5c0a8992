"""Symbol maps, model inputs and device ids: every documented form, and refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from qaic.options.codecs.scalars import ValueMismatchError
from qaic.options.codecs.structures import DeviceIds, ModelInput, ModelInputs, SymbolMap

IMAGE = ModelInput("data", "float32", (1, 3, 8, 8))


@pytest.mark.parametrize(
    "value",
    [
        {"batch": 2, "seq": 128},
        {"batch": "2", "seq": "128"},
        {"batch": np.int64(2), "seq": 128},
        [("batch", 2), ("seq", 128)],
        (("batch", 2), ("seq", 128)),
        [["batch", "2"], ["seq", "1_28"]],
        ["batch,2", "seq,128"],
        ["batch, 2", ("seq", 128)],
        "batch 2 seq 128",
        " batch  2\nseq 128 ",
        [("batch", 2), ("seq", 128), ("batch", 2)],
    ],
)
def test_symbol_map_forms(value):
    parsed = SymbolMap().parse(value)
    assert list(parsed.items()) == [("batch", 2), ("seq", 128)]


def test_symbol_map_single_text_keeps_commas_of_the_name():
    assert SymbolMap().parse("batch,2") == {"batch": 2}
    assert SymbolMap().parse("max(a,b),7") == {"max(a,b)": 7}
    assert SymbolMap().parse(["past + 1,9"]) == {"past + 1": 9}


def test_symbol_map_may_be_empty():
    assert SymbolMap().parse({}) == {}
    assert SymbolMap().parse([]) == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("batch", "symbols with integers"),
        ("batch 2 seq", "symbols with integers"),
        ("", "symbols with integers"),
        ("batch=1", "as batch,4, found 'batch=1'; did you mean batch,1"),
        (["seq: 7"], "did you mean seq,7"),
        (7, "symbols with integers"),
        (None, "symbols with integers"),
        (b"batch,2", "symbols with integers"),
        ([7], "found 7 in the list"),
        ([("batch", 2, 3)], "in the list"),
        (["batch"], "found 'batch'"),
        ({"": 2}, "found '' as the name of a symbol"),
        ({3: 2}, "found 3 as the name of a symbol"),
        ({"batch": 0}, "for the symbol 'batch', found 0"),
        ({"batch": "x"}, "for the symbol 'batch', found 'x'"),
        ({"batch": None}, "for the symbol 'batch', found nothing"),
        ({"batch": 2.0}, r"for the symbol 'batch', found 2\.0"),
        ({"batch": 2**63}, "for the symbol 'batch'"),
        ([("batch", 2), ("batch", 3)], "one value for the symbol 'batch', found 2 and 3"),
    ],
)
def test_symbol_map_rejects(value, text):
    with pytest.raises(ValueMismatchError, match=text):
        SymbolMap().parse(value)


def test_symbol_map_does_not_share_the_callers_mapping():
    given = {"batch": 2}
    parsed = SymbolMap().parse(given)
    given["batch"] = 3
    assert parsed == {"batch": 2}
    assert SymbolMap().to_json(parsed) == {"batch": 2}


@pytest.mark.parametrize(
    "value",
    [
        [{"input_name": "data", "input_type": "float32", "input_shape": [1, 3, 8, 8]}],
        {"input_name": "data", "input_type": "float32", "input_shape": [1, 3, 8, 8]},
        {"input-name": "data", "Input_Type": "FLOAT", "input shape": (1, 3, 8, 8)},
        {"input_name": "data", "input_type": "fp32", "input_shape": "1, 3, 8, 8"},
        {"input_name": "data", "input_type": "float", "input_shape": "[1,3,8,8]"},
        {"input_name": "data", "input_type": np.float32, "input_shape": np.array([1, 3, 8, 8])},
        {"input_name": "data", "input_type": np.dtype("float32"), "input_shape": ["1", "3", "8", "8"]},
        "data,float32,[1,3,8,8]",
        [" data , float , [1, 3, 8, 8] "],
        [IMAGE],
        [ModelInput("data", "float", [1, 3, 8, 8])],  # type: ignore[arg-type]
    ],
)
def test_model_inputs_forms(value):
    assert ModelInputs().parse(value) == (IMAGE,)


SHAPE = ModelInput("data", None, (1, 3, 8, 8))


@pytest.mark.parametrize(
    "text",
    [
        "data:1x3x8x8",
        "data[1,3,8,8]",
        "data:[1,3,8,8]",
        "data,[1,3,8,8]",
        " data : 1x3x8x8 ",
        "data[1, 3, 8, 8]",
    ],
)
def test_shapes_as_other_runtimes_write_them(text):
    assert ModelInputs().parse(text) == (SHAPE,)
    assert ModelInputs().parse([text, "ids:0:1x2"]) == (SHAPE, ModelInput("ids:0", None, (1, 2)))
    assert ModelInputs().parse(ModelInputs().to_texts((SHAPE,))) == (SHAPE,)
    assert ModelInputs().parse(ModelInputs().to_json((SHAPE,))) == (SHAPE,)


@pytest.mark.parametrize("text", ["1,3,8,8", "1x3x8x8", "[1,3,8,8]"])
def test_a_shape_alone_is_that_of_the_only_input(text):
    alone = (ModelInput("", None, (1, 3, 8, 8)),)
    assert ModelInputs().parse(text) == alone
    assert ModelInputs().parse(ModelInputs().to_texts(alone)) == alone


def test_several_shapes_in_one_text():
    assert ModelInputs().parse("a:1x3,b/c:2,d:0:7x7") == (
        ModelInput("a", None, (1, 3)),
        ModelInput("b/c", None, (2,)),
        ModelInput("d:0", None, (7, 7)),
    )


def test_model_inputs_scalar_and_order():
    parsed = ModelInputs().parse(["b,int64,[]", "a,bool,[0]"])
    assert parsed == (ModelInput("b", "int64", ()), ModelInput("a", "bool", (0,)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, 'a list of {"input_name"'),
        (None, 'a list of {"input_name"'),
        ([3], "found 3 in the list"),
        ("data,float32", r'an input as "name,type,\[d0,d1\]", "name:1x3", "name\[1,3\]"'),
        (
            {"input_name": "data"},
            "the keys input_name, input_shape, input_type for each input, found input_name",
        ),
        ({}, "found no keys"),
        ({"input_name": "d", "input_type": "bool", "input_shape": [], "x": 1}, "found input_name, .*, x"),
        ({"input_name": "", "input_type": "bool", "input_shape": []}, "the name of a graph input"),
        (
            {"input_name": "d", "input_type": "float8", "input_shape": []},
            "as the type of the input 'd', found 'float8'",
        ),
        (
            {"input_name": "d", "input_type": "bool", "input_shape": [-1]},
            "for the input 'd', found -1 as value 1",
        ),
        (
            {"input_name": "d", "input_type": "bool", "input_shape": ["n"]},
            "for the input 'd', found 'n' as value 1",
        ),
        ({"input_name": "d", "input_type": "bool", "input_shape": None}, "for the input 'd', found nothing"),
        (["d,bool,[]", "d,bool,[1]"], "one description for each input, .*, found two of the input 'd'"),
        (["1x3", "1x3"], "with its name, as a:1x3, found two of an input without a name"),
    ],
)
def test_model_inputs_rejects(value, text):
    with pytest.raises(ValueMismatchError, match=text):
        ModelInputs().parse(value)


def test_model_inputs_json_form_parses_back():
    codec = ModelInputs()
    stored = json.loads(json.dumps(codec.to_json((IMAGE,))))
    assert stored == [{"input_name": "data", "input_type": "float32", "input_shape": [1, 3, 8, 8]}]
    assert codec.parse(stored) == (IMAGE,)


# --- device ids ---


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        (3, 3), ("3", 3), (np.int64(3), 3), ([3], 3), ("0:2:1", (0, 2, 1)), (" 0 , 1 ", (0, 1)),
        ([0, "1"], (0, 1)), ((1, 0), (1, 0)), (np.array([0, 1]), (0, 1)), ([], 0),
    ],
)  # fmt: skip
def test_device_ids_forms(value, ids):
    codec = DeviceIds(le=9)
    assert codec.parse(value) == ids
    assert codec.parse(codec.to_json(ids)) == ids


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (-1, "-1"), (10, "10"), ("x", "'x'"), ("", "''"), (None, "nothing"), (True, "True"), (1.0, "1.0"),
        ([0, 10], r"10 in \[0, 10\]"), ("0:x", "'x' in '0:x'"), ("0:", "'' in '0:'"),
        ([0, 1, 0], "the same id twice"), (b"01", "b'01'"),
    ],
)  # fmt: skip
def test_device_ids_rejects(value, found):
    with pytest.raises(ValueMismatchError, match=f"an integer from 0 to 9, or several.*, found {found}"):
        DeviceIds(le=9).parse(value)
