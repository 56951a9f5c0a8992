"""A fork of a process with a decoder: each process has its own state, with and without caches in place."""

from __future__ import annotations

import json

import numpy as np
import pytest

from child_process import run_script

_FORKED = """
import json, os, select, signal, sys, tempfile
from pathlib import Path

import numpy as np

import decoder_model
import qaic
from qaic.compiler.driver import compile_model
from qaic.options import resolve

sizes = decoder_model.Sizes(context=128)
given = {
    "network_specialization_config": decoder_model.specializations(8, context=sizes.context),
    "retained_state": True,
    "split_retained_state_io": True,
    "whole_caches": sys.argv[1] == "True",
    "aic_num_cores": 1,
}
found = resolve(given, options_path=None, model_is_container=False)
path = compile_model(
    decoder_model.decoder(sizes), found.compile, found.set_compile, output_dir=Path(tempfile.mkdtemp(), "qpc")
)

def step(session, position):
    feed = {"input_ids": np.array([[position % 23]]), "position_ids": np.array([[position]])}
    return session.run(feed)["logits"].ravel().tolist()

def in_child(work):
    "What `work` returned in a forked process, which leaves without the end of an interpreter."
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = work()
        except BaseException as error:
            answer = repr(error)
        with os.fdopen(writing, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        if not select.select([pipe], [], [], 40)[0]:
            os.kill(child, signal.SIGKILL)
        answer = pipe.read()
    os.waitpid(child, 0)
    return json.loads(answer or '"hung"')

def child(session):
    "Begins with caches of zeros, and fills them."
    begins = not any(session.read_state(name).any() for name in sizes.caches)
    return begins, [step(session, position) for position in range(70)]

with qaic.Session(path, num_activations=1, set_size=1) as session:
    first = [step(session, position) for position in range(66)]
    before = [session.read_state(name) for name in sizes.caches]
    begins, steps = in_child(lambda: child(session))
    is_kept = all(map(np.array_equal, before, [session.read_state(name) for name in sizes.caches]))
    parent = first + [step(session, position) for position in range(66, 70)]
print(json.dumps([begins, is_kept, steps, parent]))
"""


@pytest.fixture(scope="module")
def answers():
    """Return the results with caches that are written completely, and with caches in place."""
    return [json.loads(run_script(_FORKED, is_whole).stdout) for is_whole in (True, False)]


def test_a_child_begins_with_empty_caches_and_leaves_those_of_its_parent(answers):
    for begins, is_kept, _, _ in answers:
        assert begins
        assert is_kept


def test_parent_and_child_give_the_same_tokens_in_place_and_not(answers):
    steps = [np.array(given) for *_, child, parent in answers for given in (child, parent)]
    assert steps[0].shape == (70, 23)
    for given in steps[1:]:
        np.testing.assert_array_equal(given, steps[0])
