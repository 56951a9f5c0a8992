"""What is written under these names is found by them, and says what it is of."""

from hypothesis import given
from hypothesis import strategies as st

from qaic import profile_names
from qaic.stats.opening import FILE_NAME

NUMBERS = st.integers(0, 2**64)


@given(
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.text("ab-/\\\0._", min_size=1, max_size=20),
    st.sampled_from(["p", "a-b", "x"]),
)
def test_the_name_of_a_buffer_says_what_it_is_of(program, activation, inference, network, prefix):
    name = profile_names.buffer_name(program, activation, inference, network, prefix=prefix)
    assert not set(name) & set("/\\\0")
    found = FILE_NAME.fullmatch(name)
    assert [int(found[key]) for key in ("program", "activation", "inference")] == [
        program,
        activation,
        inference,
    ]
    assert (found["prefix"], found["network"]) == (prefix, profile_names.in_file_names(network))


def test_names_are_the_documented_ones():
    assert profile_names.buffer_name(0, 0, 213, "QAicGraph") == (
        "aic-profiling-program-0-activation-0-inf-213-QAicGraph-aiccyclecounts.bin"
    )
    assert profile_names.summary_name(0, 1, 2) == "aic-profiling-program-0-activation-1-inf-2.txt"
    assert profile_names.latency_name(3) == "aic-profiling-program-3-latency.txt"
    assert profile_names.trace_name(3) == "aic-profiling-program-3-trace.json"
