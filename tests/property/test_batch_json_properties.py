"""A batch file of ``qaic-runner`` with any contents is read, or refused with the location of the error."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from qaic.cli.runner.batch_json import read_batch
from qaic.cli.runner.network import Binding, Network
from qaic.errors import InputError

NETWORK = Network(
    [
        Binding("x", 0, 32, False, 0, (1, 8), ((1, 8), (1, 2))),
        Binding("part", 1, 48, True, 0, (4, 3), ()),
        Binding("past", 2, 16, False, 0, (4,), ()),
    ],
    [
        Binding("y", 3, 32, False, 0, (1, 8), ((1, 8), (1, 2))),
        Binding("past_RetainedState", 4, 16, False, 0, (4,), ()),
    ],
    1,
)
NAMES = ["x", "part", "past", "y", "past_RetainedState"]

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
entries = st.fixed_dictionaries(
    {},
    optional={
        "path": st.sampled_from(["32", "16", "48", "24", "8", "0", ".", "missing"]) | anything,
        "io-direction": st.sampled_from(["in", "out"]) | anything,
        "elem-size": st.sampled_from([4, 8]) | anything,
        "data-type": st.sampled_from(["float", "int64"]) | anything,
        "map-to": st.sampled_from(NAMES) | anything,
        "dims": st.lists(st.integers(0, 9), max_size=4) | anything,
        "skip-validation": st.booleans() | anything,
    },
)
documents = (
    st.fixed_dictionaries({"IO-files": st.lists(st.lists(entries, max_size=6), max_size=3)}) | anything
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("batch")
    for size in (32, 16, 48, 24, 8, 0):
        np.zeros(size, np.uint8).tofile(made / str(size))
    return made


def good(**changes):
    return {"path": "32", "io-direction": "in", "elem-size": 4, "map-to": "x", "dims": [1, 8], **changes}


def outcome(path, *, compare):
    """The requests, and True if an error states the location."""
    try:
        return read_batch(path, NETWORK, compare=compare), True
    except InputError as error:
        return [], error.message.startswith(str(path))
    except OSError as error:
        return [], error.filename is not None


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(document=documents, compare=st.booleans())
@example(
    document={"IO-files": [[good(), good(**{"map-to": "part", "path": "24", "dims": None})]]}, compare=True
)
@example(document={"IO-files": [[good(path="\ud800")]]}, compare=False)
@example(document={"IO-files": [[good(path="a" * 5000)]]}, compare=False)
def test_what_is_read_fits_and_what_does_not_is_refused(folder, document, compare):
    path = folder / "batch.json"
    path.write_text(json.dumps(document))
    requests, is_located = outcome(path, compare=compare)
    assert is_located
    for request in requests:
        assert [part.binding for part in request.inputs] == NETWORK.inputs
        assert [part.binding for part in request.outputs] == NETWORK.outputs
        for part in request.inputs:
            assert part.skipped == (not part.paths)
            assert part.skipped or len(part.read()) == part.nbytes
            assert not part.skipped or part.binding.name == "past"
        for part in (*request.inputs, *request.outputs):
            assert part.skipped or part.binding.accepts(part.nbytes)
