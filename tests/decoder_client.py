"""A client of the low-level binding that runs a decoder as clients of the card do.

The caches stay on the device: their buffers are empty. The shapes of the tokens select prefill or decode.
"""

from __future__ import annotations

import numpy as np

import QAicApi_pb2
import qaicrt
from qaicrt import QStatus

CHUNK = 8

_DTYPES = {
    QAicApi_pb2.FLOAT_TYPE: np.float32,
    QAicApi_pb2.FLOAT_16_TYPE: np.float16,
    QAicApi_pb2.INT64_I_TYPE: np.int64,
    QAicApi_pb2.UINT8_Q_TYPE: np.uint8,
}


class Client:
    """The client's data for a session: buffers and dims of all bindings, by name."""

    def __init__(self, folder, *, activate=True):
        self.context = qaicrt.Context()
        self.queue = qaicrt.Queue(self.context, 0)
        self.qpc = qaicrt.Qpc(str(folder))
        self.program = qaicrt.Program(self.context, 0, self.qpc, qaicrt.QAicProgramProperties())
        assert self.program.load() == QStatus.QS_SUCCESS
        if activate:
            assert self.program.activate() == QStatus.QS_SUCCESS
        status, described = self.qpc.getIoDescriptor()
        assert status == QStatus.QS_SUCCESS
        self.described = QAicApi_pb2.IoDesc()
        self.described.ParseFromString(bytes(described))
        bindings = self.described.selected_set.bindings
        self.index = {binding.name: binding.index for binding in bindings}
        self.outputs = [b.name for b in bindings if b.dir == QAicApi_pb2.BUFFER_IO_TYPE_OUTPUT]
        self.dtypes = {binding.name: _DTYPES.get(binding.type) for binding in bindings}
        self.vocabulary = next((b.dims[-1] for b in bindings if b.name == "logits"), 0)
        self.buffers = [qaicrt.QBuffer(bytes(binding.size)) for binding in bindings]
        self.dims = qaicrt.BufferDimensionsVecRef([(1, [binding.size]) for binding in bindings])
        self.exec_obj = qaicrt.ExecObj(self.context, self.program)

    def set(self, **arrays):
        for name, array in arrays.items():
            index = self.index[name]
            self.buffers[index] = qaicrt.QBuffer(array.tobytes())
            self.dims[index] = (array.itemsize, array.shape or (1,))

    def skip(self, names):
        self.set(**{name: np.array([]) for name in names})

    def skip_caches(self):
        self.skip([name for name in self.index if name.startswith("past_")])

    def submit(self):
        assert self.exec_obj.setData(self.buffers, self.dims) == QStatus.QS_SUCCESS
        assert self.queue.enqueue(self.exec_obj) == QStatus.QS_SUCCESS

    def finish(self):
        assert self.exec_obj.waitForCompletion() == QStatus.QS_SUCCESS
        status, results = self.exec_obj.getData()
        assert status == QStatus.QS_SUCCESS
        return {
            name: np.frombuffer(bytes(results[self.index[name]]), self.dtypes[name]).reshape(
                self.dims[self.index[name]][1]
            )
            for name in self.outputs
            if results[self.index[name]].size
        }

    def place(self, tokens, positions, **more):
        """Set the tokens of an inference, and space for the logits of each row's largest position."""
        tokens, positions = np.atleast_2d(tokens), np.atleast_2d(positions)
        room = np.zeros((len(tokens), 1, self.vocabulary), self.dtypes["logits"])
        self.set(input_ids=tokens, position_ids=positions, logits=room, **more)

    def step(self, tokens, positions, **more):
        """Run one chunk or one token of each row; return the outputs that were not skipped."""
        self.place(tokens, positions, **more)
        self.submit()
        return self.finish()

    def prefill(self, prompt, chunk=CHUNK, **more):
        """Feed a prompt in chunks, padded with token 0 at position -1; return the logits after it."""
        count = -(-len(prompt) // chunk) * chunk
        tokens = np.zeros((1, count), np.int64)
        positions = np.full((1, count), -1)
        tokens[0, : len(prompt)] = prompt
        positions[0, : len(prompt)] = np.arange(len(prompt))
        found = None
        for start in range(0, count, chunk):
            piece = np.s_[:, start : start + chunk]
            found = self.step(tokens[piece], positions[piece], **more)
        return found["logits"][0, 0]


def compiled(model, config, folder, **options):
    """Compile a decoder with these sets of shapes for one core; return the folder of its container."""
    from qaic.compiler.driver import compile_model
    from qaic.options import resolve

    given = {"network_specialization_config": config, "retained_state": True, "aic_num_cores": 1, **options}
    found = resolve(given, options_path=None, model_is_container=False)
    return compile_model(model, found.compile, found.set_compile, output_dir=folder).parent
