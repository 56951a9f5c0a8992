"""Files with these names are found by name, and their content determines their type."""

from hypothesis import given
from hypothesis import strategies as st

from qaic.stats.opening import FILE_NAME
from qaic.support import program_names

NUMBERS = st.integers(0, 2**64)


@given(
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.text("ab-/\\\0._", min_size=1, max_size=20),
    st.sampled_from(["p", "a-b", "x"]),
)
def test_the_name_of_a_buffer_says_what_it_is_of(program, activation, inference, network, prefix):
    name = program_names.buffer_name(program, activation, inference, network, prefix=prefix)
    assert not set(name) & set("/\\\0")
    found = FILE_NAME.fullmatch(name)
    assert [int(found[key]) for key in ("program", "activation", "inference")] == [
        program,
        activation,
        inference,
    ]
    assert (found["prefix"], found["network"]) == (prefix, program_names.in_file_names(network))


def test_names_are_the_documented_ones():
    assert program_names.buffer_name(0, 0, 213, "QAicGraph") == (
        "aic-profiling-program-0-activation-0-inf-213-QAicGraph-aiccyclecounts.bin"
    )
    assert program_names.summary_name(0, 1, 2) == "aic-profiling-program-0-activation-1-inf-2.txt"
    assert program_names.latency_name(3) == "aic-profiling-program-3-latency.txt"
    assert program_names.trace_name(3) == "aic-profiling-program-3-trace.json"


@given(st.text(min_size=1, max_size=400))
def test_no_network_is_called_too_long_for_a_file(network):
    name = program_names.buffer_name(10, 10, 2**32, network)
    # names of outputs add up to a dozen bytes to this name, and temporary files add more
    assert len(name.encode(errors="replace")) < 255 - 12 - 16
    assert FILE_NAME.fullmatch(name) is not None


def test_long_names_keep_both_ends():
    names = [program_names.in_file_names("n" * 5000 + f"_slice{device}") for device in range(2)]
    assert all(name.startswith("nnn") and name.endswith(f"_slice{place}") for place, name in enumerate(names))
    assert program_names.in_file_names("resnet50") == "resnet50"
    assert len(program_names.in_file_names("é" * 5000).encode()) <= 120
