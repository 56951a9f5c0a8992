import json
import re
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qaic.errors import OptionError
from qaic.options import resolve
from qaic.options.codecs.scalars import ValueMismatchError
from qaic.options.files.node_precision import NodePrecision, NodePrecisionLists


def read(tmp_path, text):
    path = tmp_path / "precision.yaml"
    path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
    codec = NodePrecisionLists()
    return codec.load(codec.parse(str(path)))


@pytest.mark.parametrize(
    ("text", "fp16", "fp32"),
    [
        ("FP16NodeInstanceNames: [a, b]\n", ("a", "b"), ()),
        ("FP32NodeInstanceNames:\n  - a\n  - /m/Add_output_0\n", (), ("a", "/m/Add_output_0")),
        ("FP16NodeInstanceNames: [on, 12, 1.50, '']\n".replace(", ''", ""), ("on", "12", "1.50"), ()),
        ("FP16NodeInstanceNames:\nFP32NodeInstanceNames: [x]\n", (), ("x",)),
        ("FP16NodeInstanceNames: [a, a]\n", ("a",), ()),
        ("FP16NodeInstanceNames: []\n", (), ()),
        ("{}\n", (), ()),
        *((f"FP32NodeInstanceNames: {null}\n", (), ()) for null in ("~", "null", "NULL", "none")),
        ("FP16NodeInstanceNames: [~, 'null']\n", ("~", "null"), ()),
        *(
            (f"FP16NodeInstanceNames: [a]\nother: {value}\nother: 2\n", ("a",), ())
            for value in ("1", "[" * 20 + "]" * 20, "&a [*a]", "{a: 1, a: 2}")
        ),
    ],
)
def test_lists_are_read_as_text(tmp_path, text, fp16, fp32):
    assert read(tmp_path, text) == NodePrecision(fp16, fp32)


def test_files_of_large_models_have_more_names_than_aliases_may_repeat(tmp_path):
    names = [f"n{number}" for number in range((1 << 18) + 10)]
    assert read(tmp_path, f"FP16NodeInstanceNames: [{','.join(names)}]") == NodePrecision(tuple(names), ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FP16Nodes: [b]\n", r"found the key 'FP16Nodes' \(did you mean FP16NodeInstanceNames\?\)"),
        ("FP16NodeInstanceNames: [a]\nFP16NodeInstanceNames: [b]\n", r"each key once.*twice on line 2"),
        ("FP16NodeInstanceNames: a\n", r"a list of names as FP16NodeInstanceNames on line 1.*'a'"),
        ("FP16NodeInstanceNames:\n  - a\n  - [b]\n", r"a name of a tensor.*line 3.*a list"),
        ("FP16NodeInstanceNames:\n  - a\n  - ''\n", r"a name of a tensor.*line 3.*''"),
        (
            "FP16NodeInstanceNames:\n  - a\n  - b\nFP32NodeInstanceNames:\n  - b\n",
            r"1 in both, as 'b' \(lines 3 and 5\)",
        ),
        ("- a\n", r"a mapping with FP16NodeInstanceNames or FP32NodeInstanceNames.*a list"),
        ("", r"a mapping with .*nothing"),
        ("FP16NodeInstanceNames: [a\n", r"YAML.*line 2"),
        ("? [a]\n: b\n", r"a single word as key.*a list or a mapping on line 1"),
        (b"\xff\xfe\x00", r"YAML"),
        ("[" * 100_000, r"YAML|at most 100 levels"),
        ("[" * 200 + "]" * 200, r"at most 100 levels .*more on line 1"),
        ("FP16NodeInstanceNames: " + "[" * 9 + "]" * 9, r"at most 8 levels .*more on line 1"),
        (
            "FP16NodeInstanceNames:\n- &a [" + "n," * 1000 + "]\n- [" + "*a," * 1000 + "]",
            r"at most 262144 values .*more on line 2",
        ),
        ("FP16NodeInstanceNames:\n- a\n-\n", r"a name of a tensor.*line 3.*nothing"),
        *(
            (f"FP32NodeInstanceNames: '{null}'\n", rf"a list of names.*line 1.*'{null}'")
            for null in ("", "~", "null", "none")
        ),
        ("FP16NodeInstanceNames: [" + "a," * (3 << 20) + "]", r"at most 4 MiB"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path, text, message):
    with pytest.raises(ValueMismatchError, match=re.compile(message, re.DOTALL)):
        read(tmp_path, text)


def test_missing_file_is_named(tmp_path):
    codec = NodePrecisionLists()
    with pytest.raises(ValueMismatchError, match=r"readable file .*none\.yaml"):
        codec.load(codec.parse(tmp_path / "none.yaml"))


@pytest.mark.parametrize("value", [3, ["a"], {"FP16": ["a"]}, {"FP16NodeInstanceNames": "a"}, ""])
def test_other_values_are_refused(value):
    with pytest.raises(ValueMismatchError):
        NodePrecisionLists().parse(value)


names = st.lists(st.text(min_size=1), unique=True)


@given(names, names)
def test_mapping_from_python_is_the_file(half, single):
    single = [name for name in single if name not in half]
    codec = NodePrecisionLists()
    value = codec.parse({"FP16NodeInstanceNames": half, "FP32NodeInstanceNames": single})
    assert value == NodePrecision(tuple(half), tuple(single))
    assert codec.load(value) == codec.parse(value) == value
    assert codec.parse(json.loads(json.dumps(codec.to_json(value)))).fp16 == tuple(sorted(half))


def resolved(**options):
    return resolve(options, options_path=None, model_is_container=False)


def test_option_records_the_content_and_not_the_path(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("FP16NodeInstanceNames: [b, a]\n")
    options = resolved(node_precision_info=path)
    assert options.compile.node_precision_info_file == NodePrecision(("b", "a"), ())
    assert options.set_compile["node_precision_info_file"] == {
        "FP16NodeInstanceNames": ["a", "b"],
        "FP32NodeInstanceNames": [],
    }


def test_option_error_names_the_option(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("Nodes: [a]\n")
    with pytest.raises(OptionError, match=r"node_precision_info_file.*'Nodes'"):
        resolved(node_precision_info_file=path)
