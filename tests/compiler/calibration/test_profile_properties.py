"""Profiles stay equal when they are written and read, by both readers; hostile text only causes errors."""

import re

import numpy as np
import yaml
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from qaic.compiler.calibration.glow_profile import entry_keys, legalize, read_profile, write_profile
from qaic.compiler.ir.quantization import CalibrationProfile, TensorProfile
from qaic.errors import OptionError

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
COUNTS = st.one_of(st.integers(0, 2**24).map(float), st.floats(0, 2**40, width=32))
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30)


@st.composite
def tensor_profiles(draw):
    low, high = sorted((draw(FLOATS), draw(FLOATS)))
    counts = np.array(draw(st.lists(COUNTS, min_size=1, max_size=40)), np.float32)
    # A histogram without counts contains as little information as no histogram.
    counts[0] += 1
    return TensorProfile(low, high, counts)


@st.composite
def graphs(draw):
    """A chain of nodes with any names and two results each."""
    names = draw(st.lists(NAMES, min_size=1, max_size=6))
    tensors = draw(st.lists(NAMES, min_size=1 + 2 * len(names), max_size=1 + 2 * len(names), unique=True))
    nodes = [
        helper.make_node("Op", [tensors[0]], tensors[1 + 2 * at : 3 + 2 * at], name=name if at % 2 else "")
        for at, name in enumerate(names)
    ]
    value = helper.make_tensor_value_info(tensors[0], 1, [1])
    return helper.make_graph(nodes, "g", [value], [])


@given(graphs(), st.data(), st.integers(0, 2**64 - 1))
def test_what_is_written_is_read(graph, data, graph_hash):
    names = list(entry_keys(graph))
    chosen = data.draw(st.sets(st.sampled_from(names)))
    profile = CalibrationProfile(
        {name: data.draw(tensor_profiles()) for name in names if name in chosen}, graph_hash
    )
    text = "".join(write_profile(profile, graph))
    for form in (text, text.replace("\n  Min", "\n\n  # a note\n  Min"), text.replace("[ ", "[\n    ")):
        again = read_profile(form.encode(), "p.yaml").bind(graph)
        assert again.graph_hash == graph_hash
        assert again.tensors == profile.tensors


@given(graphs(), st.data())
def test_the_file_is_yaml_of_three_documents(graph, data):
    names = list(entry_keys(graph))
    profile = CalibrationProfile({names[0]: data.draw(tensor_profiles())}, 7)
    text = "".join(write_profile(profile, graph))
    version, graph_hash, entries = yaml.safe_load_all(text)
    assert version["GlowToolsVersion"].startswith("openqaic ")
    assert graph_hash == {"GraphPreLowerHash": 7}
    [entry] = entries
    assert list(entry) == ["NodeOutputName", "Min", "Max", "Histogram"]
    tensor = profile.tensors[names[0]]
    assert np.float32(entry["Min"]) == np.float32(tensor.minimum)
    assert np.array_equal(np.array(entry["Histogram"], np.float32), tensor.histogram)
    # Decimal numbers without trailing or leading zeros; names can look like any number.
    numbers = re.search(r"\n  Min: (.*)\n  Max: (.*)\n  Histogram: \[ (.*) \]\n", text).groups()
    for number in ", ".join(numbers).split(", "):
        assert re.fullmatch(r"-?\d+(\.\d*[1-9])?", number)


def test_names_that_look_like_numbers_are_no_numbers():
    value = helper.make_tensor_value_info("A0E0", 1, [1])
    graph = helper.make_graph([helper.make_node("Op", ["A0E0"], ["1e5"], name="0E0")], "g", [value], [])
    names = list(entry_keys(graph))
    profile = CalibrationProfile({name: TensorProfile(0.0, 1.5, np.ones(2, np.float32)) for name in names}, 7)
    text = "".join(write_profile(profile, graph))
    assert read_profile(text.encode(), "p.yaml").bind(graph).tensors == profile.tensors


@given(graphs(), st.data())
def test_any_yaml_of_the_same_values_is_read_alike(graph, data):
    names = list(entry_keys(graph))
    profile = CalibrationProfile({name: data.draw(tensor_profiles()) for name in names[:2]}, 7)
    documents = list(yaml.safe_load_all("".join(write_profile(profile, graph))))
    flow = data.draw(st.sampled_from([True, False, None]))
    text = yaml.safe_dump_all(documents, default_flow_style=flow, width=60)
    again = read_profile(text.encode(), "p.yaml").bind(graph)
    assert again.tensors == profile.tensors


@given(graphs())
def test_keys_are_legal_and_differ(graph):
    keys = entry_keys(graph)
    assert len(set(keys.values())) == len(keys)
    for key in keys.values():
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*:[0-9]+", key)


@given(st.text(min_size=1, max_size=1200))
def test_legal_names(name):
    legal = legalize(name)
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", legal)
    assert len(legal) <= 500
    if len(name) < 400 and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        assert legal == name


PIECES = st.sampled_from(
    [
        "---\n",
        "...\n",
        "- ",
        "  ",
        "NodeOutputName: a:0\n",
        "Min: 1\n",
        "Max: 2\n",
        "Histogram: [ 1, 2 ]\n",
        "Histogram: [\n",
        "- &a [*a]\n",
        "<<: *a\n",
        "]\n",
        "Scale: .nan\n",
        "Offset: 1e9\n",
        "Min: -inf\n",
        "!!python/object:os.system x\n",
        "{a: [b]}\n",
        "'",
        '"',
        "\t",
        "GraphPreLowerHash: 0x1\n",
        "? x\n",
    ]
)


def refusal(data):
    """Read a profile; return the error if there is one."""
    try:
        read_profile(data, "p.yaml")
    except OptionError as error:
        return error
    return None


@given(st.lists(st.one_of(PIECES, st.text(max_size=8)), max_size=25).map("".join))
def test_any_text_is_read_or_refused(text):
    error = refusal(text.encode(errors="surrogatepass"))
    assert error is None or (error.code == "profile.malformed" and "p.yaml, line" in str(error))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    error = refusal(data)
    assert error is None or error.code == "profile.malformed"
