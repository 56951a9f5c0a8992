"""Properties of all spellings, values and files of options."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, example, given
from hypothesis import strategies as st

from qaic.errors import OptionConflictError, OptionError, UnknownOptionError
from qaic.options import resolve
from qaic.options.codecs.scalars import (
    Bool,
    Codec,
    Enum,
    FilePath,
    Float,
    Int,
    ListOf,
    Str,
    ValueMismatchError,
)
from qaic.options.codecs.structures import ModelInputs, SymbolMap
from qaic.options.files.options_file import read_options_file
from qaic.options.names import in_style_of, nearest, normalize
from qaic.options.table import SPECS, find, nearest_name

CODECS: list[Codec[object]] = [
    Bool(),
    Int(),
    Int(ge=1, le=16),
    Float(ge=0, le=1),
    Str(),
    Enum("None", "MSE"),
    FilePath(),
    ListOf(Int(), spaces=True),
    ListOf(FilePath(), most=2),
    SymbolMap(),
    ModelInputs(),
]

# Words that YAML 1.1 would not read as text.
TREACHEROUS = [
    "on",
    "off",
    "yes",
    "no",
    "y",
    "n",
    "true",
    "null",
    "None",
    "~",
    "010",
    "1_0",
    "2.0",
    "1:30",
    "0x1F",
    ".5",
]

# Plain YAML text cannot contain line ends and control characters; surrogates cannot be written at all.
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1).filter(
    str.strip
)
SYMBOLS = (st.sampled_from(TREACHEROUS) | TEXT).map(str.strip)
SIZES = st.integers(1, 2**63 - 1)
INPUTS = st.fixed_dictionaries(
    {
        "input_name": st.sampled_from(TREACHEROUS) | TEXT,
        "input_type": st.sampled_from(["float32", "float16", "int64", "bool", "uint8"]),
        "input_shape": st.lists(st.integers(0, 2**31), max_size=5),
    }
)

VALUES = {
    # Without quotes, the word None means "not set", and the YAML writer does not quote it.
    "output_dir": TEXT.filter(lambda text: text.strip().lower() != "none"),
    "model_inputs": st.lists(INPUTS, max_size=3, unique_by=lambda item: item["input_name"]),
    "onnx_define_symbol": st.dictionaries(SYMBOLS, SIZES, max_size=4),
    "convert_to_fp16": st.booleans(),
    "clip_fp16_constants": st.booleans(),
    "aic_num_cores": st.integers(1, 16),
    "combine_inputs": st.booleans(),
    "combine_outputs": st.booleans(),
    "compile_only": st.booleans(),
    "dev_id": st.integers(0, 255) | st.lists(st.integers(0, 255), min_size=2, max_size=4, unique=True),
    "num_activations": st.integers(1, 16),
    "set_size": st.integers(1, 64),
    "submit_timeout": st.integers(0, 3600),
    "submit_num_retries": st.integers(0, 9),
    "threads_per_queue": st.integers(1, 64),
    "oversubscription_name": TEXT.map(str.strip).filter(
        lambda text: text.lower() not in {"none", "null", "~"}
    ),
    "enable_metrics": st.booleans(),
    "backend": st.sampled_from(["aic", "qaic"]),
    "strict_options": st.booleans(),
}
OPTIONS = st.fixed_dictionaries({}, optional=VALUES)


@contextlib.contextmanager
def options_file(text: str | bytes):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "options.yaml")
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        yield path


def resolved(kwargs, text: str | None = None):
    if text is None:
        return resolve(kwargs, options_path=None, model_is_container=False)
    with options_file(text) as path:
        return resolve(kwargs, options_path=path, model_is_container=False)


def values(result) -> dict[str, object]:
    """Every value except the path of the file itself."""
    return {
        spec.name: getattr(model, spec.name)
        for spec in SPECS
        if spec.name != "options_path"
        for model in (result.session, result.compile, result.runtime)
        if hasattr(model, spec.name)
    }


ALL_KEYS = sorted({key for row in SPECS for key in row.keys})


@st.composite
def spellings(draw, keys=ALL_KEYS):
    """Draw a lookup key and one of its spellings."""
    key = draw(st.sampled_from(keys))
    letters = [draw(st.sampled_from("_- ")) if letter == "_" else letter for letter in key]
    cased = [letter.upper() if draw(st.booleans()) else letter for letter in letters]
    return key, draw(st.sampled_from(["", "-", "--"])) + "".join(cased)


@given(spellings())
def test_every_spelling_leads_to_the_same_option(pair):
    key, spelling = pair
    found = find(spelling)
    assert found is not None
    assert found is find(key)
    assert key in found.keys


@given(st.sampled_from([spec.name for spec in SPECS]), st.sampled_from(["", "-", "--"]), st.booleans())
def test_suggested_spelling_is_found_again(name, dashes, hyphens):
    like = dashes + ("a-b" if hyphens else "a_b")
    suggestion = in_style_of(name, like)
    assert suggestion.startswith(dashes)
    found = find(suggestion)
    assert found is not None
    assert found.name == name


@given(st.sampled_from([spec.name for spec in SPECS if len(spec.name) > 5]), st.data())
def test_nearest_name_repairs_one_slip(name, data):
    place = data.draw(st.integers(0, len(name) - 2))
    slip = data.draw(st.sampled_from(["drop", "swap", "double", "replace"]))
    wrong = {
        "drop": name[:place] + name[place + 1 :],
        "swap": name[:place] + name[place + 1] + name[place] + name[place + 2 :],
        "double": name[: place + 1] + name[place:],
        "replace": name[:place] + "x" + name[place + 1 :],
    }[slip]
    assume(find(wrong) is None)
    assert nearest_name(wrong) == name


@given(st.text(max_size=200))
def test_nearest_is_one_of_the_names_or_nothing(text):
    names = [spec.name for spec in SPECS]
    assert nearest(text, names) in {None, *names}


@given(OPTIONS)
def test_keywords_are_kept_and_defaults_fill_the_rest(given_options):
    result = resolved(given_options)
    defaults = values(resolved({}))
    got = values(result)
    assert {name for name in got if got[name] != defaults[name]} <= given_options.keys()
    assert result.origins.keys() == given_options.keys()
    for spec in SPECS:
        if spec.name in given_options:
            assert got[spec.name] == spec.codec.parse(given_options[spec.name])


@given(OPTIONS, st.sampled_from([None, True, False]))
@example({"onnx_define_symbol": {"on": 1, "yes": 2, "no": 3, "null": 4, "~": 5, "010": 6}}, False)
def test_values_survive_yaml_text(given_options, flow_style):
    text = yaml.safe_dump(given_options, default_flow_style=flow_style, allow_unicode=True, sort_keys=False)
    from_file = resolved({}, text)
    from_keywords = resolved(given_options)
    assert values(from_file) == values(from_keywords)
    assert json.dumps(from_file.set_compile) == json.dumps(from_keywords.set_compile)


@given(st.dictionaries(st.sampled_from([word for word in TREACHEROUS if ":" not in word]), SIZES, min_size=1))
def test_symbols_keep_their_names_without_quotes(symbols):
    block = "onnx_define_symbol:\n" + "".join(f"  {name}: {size}\n" for name, size in symbols.items())
    assert resolved({}, block).compile.onnx_define_symbol == symbols


@given(OPTIONS, OPTIONS)
def test_keywords_win_over_the_file(keywords, in_file):
    result = resolved(keywords, yaml.safe_dump(in_file, allow_unicode=True))
    assert values(result) == values(resolved({**in_file, **keywords}))
    for name, origin in result.origins.items():
        if name != "options_path":
            assert (origin.file is None) == (name in keywords)


def takes_one(spec) -> bool:
    """Return True if an option accepts the value 1, so that only its name can be wrong."""
    try:
        spec.codec.parse("1")
    except ValueMismatchError:
        return False
    # Options that only the tools have are not read from a file.
    return spec.keyword and spec.name != "options_path"


@given(st.sampled_from([spec for spec in SPECS if takes_one(spec)]), st.integers(0, 4), st.data())
def test_an_option_that_stands_twice_in_a_file_is_rejected_with_both_lines(spec, between, data):
    (_, first), (_, second) = (data.draw(spellings(sorted(spec.keys))) for _ in range(2))
    text = f'"{first}": 1\n' + "# nothing\n" * between + f'"{second}": 1\n'
    with pytest.raises(OptionConflictError) as caught:
        resolved({}, text)
    assert caught.value.code == "option.duplicate"
    assert "line 1" in str(caught.value)
    assert f"line {between + 2}" in str(caught.value)


@given(spellings([spec.name for spec in SPECS if not spec.keyword]))
def test_an_option_of_the_tools_is_refused_as_keyword_and_warned_of_in_a_file(pair):
    name, spelling = pair
    with pytest.raises(UnknownOptionError) as caught:
        resolved({spelling: "x"})
    assert caught.value.code == "option.only_for_tools"
    result = resolved({}, f'"{spelling}": x\n')
    assert len(result.warnings) == 1
    assert spelling in result.warnings[0]
    assert name == normalize(spelling)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary(max_size=8)
    | st.sampled_from(["1,2", "a,1", "a 1 b 2", "x,float,[1,2]", "MSE", "0.5", "yes"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.none(), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.sampled_from(CODECS), JUNK)
@example(CODECS[-1], "x,float,[1,2]")
@example(CODECS[-2], "a,1")
def test_a_codec_accepts_or_names_what_it_expected(codec, value):
    refused: ValueMismatchError | None = None
    try:
        parsed = codec.parse(value)
    except ValueMismatchError as error:
        refused = error
    if refused is not None:
        assert refused.expected
        assert 0 < len(refused.found) < 200
        return
    assert codec.parse(parsed) == parsed
    assert codec.parse(json.loads(json.dumps(codec.to_json(parsed)))) == parsed


@given(st.text() | st.binary() | JUNK.map(lambda value: json.dumps(repr(value))))
@example("a: [*a]")
@example("{")
@example("? ")
@example("%YAML 9.9\n---\na: 1")
@example("<<: {a: 1}")
def test_any_file_gives_options_or_one_clear_error(text):
    with options_file(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text) as path:
        refused: OptionError | None = None
        try:
            items = read_options_file(path)
        except OptionError as error:
            refused = error
        if refused is not None:
            assert str(refused).startswith(str(path))
            assert refused.code.startswith("option.")
        else:
            assert all(isinstance(item.origin.spelling, str) for item in items)
