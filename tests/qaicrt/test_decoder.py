"""A decoder with caches on the device, driven as clients of the vendor's binding drive one.

Every step is compared with onnxruntime, which is given the caches as plain tensors.
"""

from __future__ import annotations

import numpy as np
import pytest

import decoder_model
import qaicrt
import session_models
from qaic.compiler import compile_model
from qaic.options import resolve
from qaicrt import QStatus

SIZES = decoder_model.Sizes()
CHUNK = 8
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def compiled(folder, **options):
    given = {
        "network_specialization_config": decoder_model.specializations(CHUNK),
        "retained_state": True,
        **options,
    }
    found = resolve(given, options_path=None, model_is_container=False)
    return compile_model(decoder_model.decoder(), found.compile, found.set_compile, output_dir=folder)


@pytest.fixture(scope="module")
def program_folder(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("decoder")).parent


class Client:
    """What a client keeps of a session: buffers and dims of all bindings, by name."""

    def __init__(self, folder, *, activate=True):
        self.context = qaicrt.Context()
        self.queue = qaicrt.Queue(self.context, 0)
        self.qpc = qaicrt.Qpc(str(folder))
        properties = qaicrt.QAicProgramProperties()
        self.program = qaicrt.Program(self.context, 0, self.qpc, properties)
        if self.program.load() != QStatus.QS_SUCCESS:
            raise RuntimeError("load")
        if activate:
            self.program.activate()
        mappings = self.qpc.getBufferMappings()
        self.index = {mapping.bufferName: mapping.index for mapping in mappings}
        self.outputs = [m.bufferName for m in mappings if str(m.ioType).endswith("OUTPUT")]
        self.buffers = [qaicrt.QBuffer(bytes(mapping.size)) for mapping in mappings]
        self.dims = qaicrt.BufferDimensionsVecRef([(1, [mapping.size]) for mapping in mappings])
        self.exec_obj = qaicrt.ExecObj(self.context, self.program)

    def set(self, **arrays):
        for name, array in arrays.items():
            index = self.index[name]
            self.buffers[index] = qaicrt.QBuffer(array.tobytes())
            self.dims[index] = (array.itemsize, array.shape if array.shape else (1,))

    def skip(self, names):
        self.set(**{name: np.array([]) for name in names})

    def skip_caches(self):
        self.skip([name for name in self.index if name.startswith("past_")])

    def submit(self):
        assert self.exec_obj.setData(self.buffers, self.dims) == QStatus.QS_SUCCESS
        assert self.queue.enqueue(self.exec_obj) == QStatus.QS_SUCCESS

    def finish(self):
        status = self.exec_obj.waitForCompletion()
        assert status == QStatus.QS_SUCCESS
        status, results = self.exec_obj.getData()
        assert status == QStatus.QS_SUCCESS
        return {
            name: np.frombuffer(bytes(results[self.index[name]]), np.float32).reshape(
                self.dims[self.index[name]][1]
            )
            for name in self.outputs
            if results[self.index[name]].size
        }

    def step(self, tokens, positions):
        """Run one chunk or one token; returns the outputs that were not skipped."""
        tokens, positions = np.atleast_2d(tokens), np.atleast_2d(positions)
        room = np.zeros((1, tokens.shape[1], SIZES.vocabulary), np.float32)
        self.set(input_ids=tokens, position_ids=positions, logits=room)
        self.submit()
        return self.finish()


class Oracle:
    """The same decoder in onnxruntime, with the caches in the caller's hands."""

    def __init__(self):
        self.engine = session_models.engine(decoder_model.oracle_model(decoder_model.decoder()))
        self.caches = {name: np.zeros(SIZES.cache_shape(), np.float32) for name in SIZES.caches}

    def step(self, tokens, positions):
        feeds = {"input_ids": np.atleast_2d(tokens), "position_ids": np.atleast_2d(positions)}
        logits, *caches = self.engine.run(None, feeds | self.caches)
        self.caches = dict(zip(SIZES.caches, caches, strict=True))
        return logits


def prompt(length, seed=0):
    return np.random.default_rng(seed).integers(0, SIZES.vocabulary, length)


def prefill(client, oracle, tokens):
    """Feed a prompt in chunks, the last one padded with position -1; returns the last logits."""
    last = None
    for start in range(0, len(tokens), CHUNK):
        piece = tokens[start : start + CHUNK]
        known = len(piece)
        places = np.full(CHUNK, -1)
        places[:known] = np.arange(start, start + known)
        found = client.step(np.pad(piece, (0, CHUNK - known)), places)
        assert list(found) == ["logits"]
        expected = oracle.step(piece, np.arange(start, start + known))
        np.testing.assert_allclose(found["logits"][:, :known], expected, **TOLERANCE)
        last = expected[0, -1]
    return last


def decode(client, oracle, first, start, steps):
    token = first
    for place in range(start, start + steps):
        found = client.step(token, place)
        expected = oracle.step(token, place)
        np.testing.assert_allclose(found["logits"], expected, **TOLERANCE)
        assert found["logits"][0, 0].argmax() == expected[0, 0].argmax()
        token = int(expected[0, 0].argmax())


@pytest.mark.parametrize("length", [1, CHUNK, 2 * CHUNK + 3])
def test_prompt_in_chunks_then_tokens_with_the_caches_left_on_the_device(program_folder, length):
    client, oracle = Client(program_folder), Oracle()
    client.skip_caches()
    tokens = prompt(length)
    logits = prefill(client, oracle, tokens)
    decode(client, oracle, int(logits.argmax()), length, SIZES.context - length)


def test_allowed_shapes_list_prefill_then_decode(program_folder):
    import QAicApi_pb2

    client = Client(program_folder, activate=False)
    status, data = client.qpc.getIoDescriptor()
    assert status == QStatus.QS_SUCCESS
    described = QAicApi_pb2.IoDesc()
    described.ParseFromString(bytes(data))
    index = client.index["input_ids"]
    assert [list(entry.shapes[index].dims) for entry in described.allowed_shapes] == [[1, CHUNK], [1, 1]]


def test_caches_that_are_fetched_are_the_oracles(program_folder):
    client, oracle = Client(program_folder), Oracle()
    client.skip_caches()
    prefill(client, oracle, prompt(CHUNK + 2))
    wanted = {f"{name}_RetainedState": np.zeros(SIZES.cache_shape(), np.float32) for name in SIZES.caches}
    client.set(**wanted)
    found = client.step(5, CHUNK + 2)
    oracle.step(5, CHUNK + 2)
    for name in SIZES.caches:
        # Padding has written nothing: all other slots still have the zeros of the beginning.
        np.testing.assert_allclose(found[f"{name}_RetainedState"], oracle.caches[name], **TOLERANCE)


def test_caches_that_are_given_replace_those_on_the_device(program_folder):
    first, second = Client(program_folder), Client(program_folder)
    oracle = Oracle()
    first.skip_caches()
    prefill(first, oracle, prompt(CHUNK))
    # Another activation goes on from caches handed over by the host.
    second.skip_caches()
    prefill(second, Oracle(), prompt(3, seed=9))
    second.set(**oracle.caches)
    found = second.step(4, CHUNK)
    expected = oracle.step(4, CHUNK)
    np.testing.assert_allclose(found["logits"], expected, **TOLERANCE)
    second.skip_caches()
    decode(second, oracle, 6, CHUNK + 1, 3)


def test_activation_again_begins_with_empty_caches(program_folder):
    client = Client(program_folder)
    client.skip_caches()
    prefill(client, Oracle(), prompt(CHUNK))
    client.exec_obj = None
    assert client.program.deactivate() == QStatus.QS_SUCCESS
    assert client.program.activate() == QStatus.QS_SUCCESS
    client.exec_obj = qaicrt.ExecObj(client.context, client.program)
    oracle = Oracle()
    logits = prefill(client, oracle, prompt(3, seed=4))
    decode(client, oracle, int(logits.argmax()), 3, 4)


def test_exec_objects_of_one_program_share_the_caches_in_the_order_of_submission(program_folder):
    client, oracle = Client(program_folder), Oracle()
    tokens = prompt(3 * CHUNK, seed=2)
    others = []
    for start in range(0, len(tokens), CHUNK):
        other = Client.__new__(Client)
        other.__dict__ |= client.__dict__
        other.buffers = list(client.buffers)
        other.dims = qaicrt.BufferDimensionsVecRef(list(client.dims))
        other.exec_obj = qaicrt.ExecObj(client.context, client.program)
        other.skip_caches()
        room = np.zeros((1, CHUNK, SIZES.vocabulary), np.float32)
        places = np.arange(start, start + CHUNK)[None]
        other.set(input_ids=tokens[None, start : start + CHUNK], position_ids=places, logits=room)
        others.append(other)
    # All chunks are under way before the first result is looked at.
    for other in others:
        other.submit()
    for number, other in enumerate(others):
        places = np.arange(number * CHUNK, (number + 1) * CHUNK)
        expected = oracle.step(tokens[places], places)
        np.testing.assert_allclose(other.finish()["logits"], expected, **TOLERANCE)


def test_shapes_of_no_specialization_fail_and_leave_the_caches_alone(program_folder, capfd):
    client, oracle = Client(program_folder), Oracle()
    client.skip_caches()
    prefill(client, oracle, prompt(CHUNK))
    # Tokens of one specialization with positions of the other.
    client.set(input_ids=np.zeros((1, CHUNK), np.int64), position_ids=np.zeros((1, 1), np.int64))
    client.submit()
    assert client.exec_obj.waitForCompletion() == QStatus.QS_INVAL
    assert "No matching dimension found" in capfd.readouterr().err
    decode(client, oracle, 1, CHUNK, 3)


def test_decoder_with_the_rounding_of_the_card(tmp_path):
    # Both sides round: the oracle is the same program with the caches in the caller's hands.
    state = Client(compiled(tmp_path / "state", convert_to_fp16=True).parent)
    plain = Client(compiled(tmp_path / "plain", convert_to_fp16=True, retained_state=False).parent)
    state.skip_caches()
    caches = {name: np.zeros(SIZES.cache_shape(), np.float32) for name in SIZES.caches}
    tokens = prompt(CHUNK + 3, seed=6)
    steps = [(tokens[:CHUNK], np.arange(CHUNK)), *((tokens[i], i) for i in range(CHUNK, len(tokens)))]
    for piece, places in steps:
        plain.set(**caches, **{f"{name}_RetainedState": array for name, array in caches.items()})
        expected = plain.step(piece, places)
        caches = {name: expected[f"{name}_RetainedState"] for name in SIZES.caches}
        np.testing.assert_array_equal(state.step(piece, places)["logits"], expected["logits"])
