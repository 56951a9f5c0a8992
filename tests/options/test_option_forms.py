"""One set of options in three forms: keyword arguments, an options file, and flags. All mean the same."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from qaic.compiler.driver import compile_model
from qaic.errors import CompileError, OptionConflictError, OptionError
from qaic.options import resolve
from qaic.options.argv import read_argv, to_argv
from qaic.options.codecs.enumerations import (
    CompilationTarget,
    HardwareVersion,
    HexCodes,
    MostCores,
    RandomInputData,
    Samples,
)
from qaic.options.codecs.scalars import Bool, Enum, FilePath, Float, Int, ListOf, Str
from qaic.options.codecs.structures import DeviceIds, ModelInputs, OutputShapes, SymbolMap
from qaic.options.files.parsed_file import FileContent, ParsedFile
from qaic.options.spec import FlagForm, Stage
from qaic.options.table import SPECS, effective_options

# Values in the form of a file or a list; the text of a flag has no surrounding blanks and no separators. In a
# file, an unquoted null or none means no value.
WORD = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=6).filter(
    lambda text: text.lower() not in {"null", "none"}
)


@functools.singledispatch
def given_values(codec):
    """Values that a codec accepts, in the form of Python."""
    message = f"no values for {type(codec).__name__}"
    raise TypeError(message)


def values_of(kind):
    def register(function):
        given_values.register(kind)(function)
        return function

    return register


@values_of(Bool)
def _(codec):
    return st.booleans()


@values_of(CompilationTarget)
def _(codec):
    return st.booleans() | st.just("hardware")


@values_of(Int)
def _(codec):
    return st.integers(codec.ge if codec.ge is not None else -9, codec.le)


@values_of(Float)
def _(codec):
    return st.floats(codec.ge, codec.le)


@values_of(Str)
def _(codec):
    return WORD


@values_of(Enum)
def _(codec):
    return st.sampled_from(codec.values).flatmap(lambda word: st.sampled_from([word, word.upper()]))


@values_of(HardwareVersion)
def _(codec):
    return st.sampled_from([*codec.values, 2.0, 2])


@values_of(FilePath)
def _(codec):
    return st.lists(WORD, min_size=1, max_size=3).map("/".join)


@values_of(ListOf)
def _(codec):
    return st.lists(given_values(codec.item), max_size=codec.most or 3, unique=codec.distinct)


@values_of(MostCores)
def _(codec):
    return st.integers(1, 16) | st.just(-1) | st.just([1])


@values_of(HexCodes)
def _(codec):
    return st.lists(st.integers(0, 2**32 - 1).map("{:x}".format), max_size=codec.most)


@values_of(RandomInputData)
def _(codec):
    return st.sampled_from([True, False, "uniform", "gaussian"])


@values_of(SymbolMap)
def _(codec):
    return st.dictionaries(WORD, st.integers(1, 2**63 - 1), max_size=3)


@values_of(OutputShapes)
def _(codec):
    dims = st.lists(st.integers(0, 2**63 - 1) | WORD.filter(lambda text: not text.isdigit()), max_size=3)
    return st.dictionaries(WORD, dims, max_size=3)


@values_of(ModelInputs)
def _(codec):
    described = st.fixed_dictionaries(
        {
            "input_name": WORD,
            "input_type": st.sampled_from(["float32", "half", "int64", "bool"]),
            "input_shape": st.lists(st.integers(0, 99), max_size=4),
        }
    )
    return st.lists(described, max_size=3, unique_by=lambda entry: entry["input_name"])


@values_of(DeviceIds)
def _(codec):
    return st.integers(0, 9) | st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True)


# The values of these options are files, or exist only in Python; the unit tests of the rows test them.
LEFT_OUT = (FileContent, ParsedFile, Samples)


def is_left_out(spec):
    codec = spec.codec.item if isinstance(spec.codec, ListOf) else spec.codec
    # Samples cannot be written, encryption needs the other compiler, and a file cannot refer to another one.
    return isinstance(codec, LEFT_OUT) or spec.name in {
        "options_path",
        "io_encrypt",
        "strict_options",
        "compile",
    }


ROWS = [spec for spec in SPECS if spec.keyword and spec.stage is not Stage.CLI and not is_left_out(spec)]
WITH_FLAG = [spec for spec in ROWS if spec.flag is not None]


@st.composite
def option_sets(draw, rows):
    chosen = draw(st.lists(st.sampled_from(rows), max_size=6, unique_by=lambda spec: spec.name))
    return {spec.name: draw(given_values(spec.codec)) for spec in chosen}


def from_keywords(options):
    try:
        return resolve(options, options_path=None, model_is_container=False)
    except OptionConflictError:
        assume(False)


def from_file(options):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "options.yaml")
        path.write_text(yaml.safe_dump(options, allow_unicode=True, sort_keys=False))
        return resolve({}, options_path=path, model_is_container=False)


def from_flags(options):
    return resolve({}, options_path=None, model_is_container=False, flags=read_argv(plain_argv(options)))


def plain_argv(options):
    """Write flags as a person would, without the code under test."""
    argv = []
    for name, value in options.items():
        flag = next(spec.flag for spec in WITH_FLAG if spec.name == name)
        start = f"-{flag.text}"
        if flag.form is FlagForm.COUNT:
            argv += [start] * value
        elif value is True:
            argv.append(start)
        elif isinstance(value, bool):
            argv.append(f"{start}=false")
        elif name == "onnx_define_symbol":
            argv += [f"{start}={symbol},{size}" for symbol, size in value.items()]
        elif name == "output_shapes":
            argv += [f"{start}={output},[{','.join(map(str, dims))}]" for output, dims in value.items()]
        elif name == "model_inputs":
            argv += [
                f"{start}={entry['input_name']},{entry['input_type']},"
                f"[{','.join(map(str, entry['input_shape']))}]"
                for entry in value
            ]
        elif isinstance(value, list):
            argv.append(f"{start}={(':' if name == 'dev_id' else ',').join(map(str, value))}")
        else:
            argv.append(f"{start}={value}")
    return argv


def meaning(result):
    """Return the resolved options without their origins."""
    session = {name: value for name, value in vars(result.session).items() if name != "options_path"}
    return (
        session,
        result.compile,
        result.runtime,
        result.run_step,
        result.set_compile,
        effective_options(result.compile),
    )


@given(option_sets(ROWS))
def test_file_and_keywords_mean_the_same(options):
    expected = from_keywords(options)
    assert meaning(from_file(options)) == meaning(expected)


@given(option_sets(WITH_FLAG))
def test_flags_and_keywords_mean_the_same(options):
    expected = from_keywords(options)
    assert meaning(from_flags(options)) == meaning(expected)


@given(option_sets(WITH_FLAG))
def test_written_flags_are_read_as_the_same_options(options):
    result = from_keywords(options)
    argv = to_argv(result)
    again = resolve({}, options_path=None, model_is_container=False, flags=read_argv(argv))
    assert meaning(again) == meaning(result)
    assert to_argv(again) == argv


@given(option_sets(WITH_FLAG))
def test_the_value_may_be_the_next_argument(options):
    split = []
    for argument in plain_argv(options):
        flag, assigned, value = argument.partition("=")
        alone = not assigned or value in {"false", "hardware"} or flag == "-use-random-input-data"
        split += [argument] if alone else [f"-{flag}", value]
    assume(not any(value == "" for value in split))
    expected = from_keywords(options)
    result = resolve({}, options_path=None, model_is_container=False, flags=read_argv(split))
    assert meaning(result) == meaning(expected)


@given(
    st.lists(st.text(max_size=30) | st.sampled_from([f"-{spec.flag.text}" for spec in WITH_FLAG]), max_size=5)
)
def test_any_arguments_are_read_or_refused_with_a_reason(argv):
    refused = None
    try:
        result = resolve({}, options_path=None, model_is_container=False, flags=read_argv(argv))
    except OptionError as error:
        refused = error
    if refused is None:
        assert len(result.origins) <= len(argv)
    else:
        assert str(refused)
        assert refused.code.startswith("option.")


# Contents of the container. If the model does not support the options, every form is refused in the same way.
IN_CONTAINER = [spec for spec in WITH_FLAG if spec.in_container and spec.name != "target"]

SETTINGS = {
    "convert_to_fp16",
    "mxfp6_matmul",
    "quantization_schema_activations",
    "quantization_schema_constants",
    "quantization_calibration",
    "percentile_calibration_value",
    "quantization_precision",
    "quantization_precision_bias",
    "enable_rowwise",
    "enable_channelwise",
}
KINDS = st.lists(st.sampled_from(["Add", "BatchMatMul", "Relu"]), min_size=1, unique=True)
REDUCED = st.fixed_dictionaries(
    {"convert_to_quantize": st.booleans(), "use_random_input_data": st.sampled_from(["uniform", "gaussian"])},
    optional={
        "execute_nodes_in_fp16": KINDS,
        "keep_original_precision_for_nodes": KINDS,
        "num_histogram_bins": st.sampled_from([32, 255, 512]),
        **{spec.name: given_values(spec.codec) for spec in WITH_FLAG if spec.name in SETTINGS},
    },
)


def outcomes(model, options):
    """Return the container for each form, or its error."""
    for form in (from_keywords, from_file, from_flags):
        result = form(options)
        with tempfile.TemporaryDirectory() as cache, pytest.MonkeyPatch.context() as patch:
            patch.setenv("QAIC_CACHE_DIR", cache)
            try:
                yield compile_model(model, result.compile, result.set_compile).read_bytes()
            except (CompileError, OptionError) as error:
                yield error.code


@settings(max_examples=40)
@given(option_sets(IN_CONTAINER))
def test_all_forms_give_the_same_container(small_model, options):
    first, *others = outcomes(small_model, options)
    event(type(first).__name__)
    assert others == [first, first]


@settings(max_examples=20)
@given(REDUCED)
def test_all_forms_give_the_same_numbers(small_model, options):
    first, *others = outcomes(small_model, options)
    event(type(first).__name__)
    assert isinstance(first, bytes)
    assert others == [first, first]


@pytest.fixture(scope="module")
def small_model():
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(4)
    weights = rng.standard_normal((32, 32)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32])],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(weights[0], "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString()
