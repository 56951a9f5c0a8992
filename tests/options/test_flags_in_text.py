"""Messages name options in the form of the tool, and do not change text of the user."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qaic.options.argv import read_argv, with_flags


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("give convert_to_fp16, or batchsize 4", "give --convert-to-fp16, or --batchsize 4"),
        ("leave batchsize out.", "leave --batchsize out."),
        ("aic_hw_version=ai200 keeps it", "--aic-hw-version=ai200 keeps it"),
        (
            "e.g. onnx_define_symbol={'n': 4, 'm': 5}",
            "e.g. --onnx-define-symbol=n,4 --onnx-define-symbol=m,5",
        ),
        ("clip_fp16_constants=False makes", "--clip-fp16-constants=false makes"),
        ("compile with convert_to_fp16=True, and", "compile with --convert-to-fp16, and"),
        ("custom_io_list_file: no tensor", "--custom-IO-list-file: no tensor"),
    ],
)
def test_keywords_become_flags(text, shown):
    assert with_flags(text, "--") == shown


@pytest.mark.parametrize(
    "text",
    [
        "input 'batchsize' has no symbol",
        'the key "convert_to_fp16" is wrong',
        "/tmp/batchsize/model.onnx: no such file",
        "batchsize.onnx: no such file",
        "the model's batch_size",
        "`openqaic accuracy MODEL --option convert_to_fp16=true` says more",
        "-batchsize: expected a number",
        "--shape=batchsize:1x4",
        "give samples with calibration_data",
    ],
)
def test_what_is_no_keyword_stays(text):
    assert with_flags(text, "-") == text


@pytest.mark.parametrize("name", ["batchsize", "my batchsize", "batchsize 2", "convert_to_fp16"])
def test_names_of_users_stay_beside_options(name):
    text = f"{name}: not a model; {name} has no stats_level"
    assert with_flags(text, "--", names=[name]) == text.replace("stats_level", "--stats-level")


@given(st.text())
def test_any_text_can_be_shown(text):
    shown = with_flags(text, "--")
    if "_" not in text and "batchsize" not in text:
        assert shown == text


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True), st.integers(1, 99), min_size=1))
def test_flags_that_are_shown_mean_what_the_keyword_does(sizes):
    shown = with_flags(f"e.g. onnx_define_symbol={sizes}", "--").removeprefix("e.g. ").split(" ")
    (given_option,) = read_argv(shown)
    assert given_option.value == [f"{name},{size}" for name, size in sizes.items()]
