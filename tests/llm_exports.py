"""Models that a client of the card has exported, with its flags and the tokens that PyTorch gives for its prompts.

They are no part of the project. `OPENQAIC_LLM_EXPORTS` names their folder; without it the folder `shared/fixtures/llm`
beside the clone is looked at. Tests that need one skip where it is not there.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest

import qaicrt
from qaicrt import QStatus

CHUNK = 8

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "fixtures" / "llm"


def folder():
    return Path(os.environ.get("OPENQAIC_LLM_EXPORTS") or _BESIDE)


@dataclass(frozen=True)
class Export:
    """One exported model."""

    path: Path

    @property
    def model(self):
        return next((self.path / "model").glob("*.onnx"))

    @cached_property
    def flags(self):
        """The flags of the client, with absolute paths and without the output folder."""
        flags = []
        for flag in json.loads((self.path / "argv.json").read_text()):
            name, _, value = flag.partition("=")
            if name != "-aic-binary-dir":
                flags.append(f"{name}={self.path / value}" if (self.path / value).is_file() else flag)
        return flags

    @property
    def float32_flags(self):
        """The same without reduced precision."""
        return [f for f in self.flags if not f.startswith(("-convert-to-fp16", "-custom-IO-list-file"))]

    @cached_property
    def greedy(self):
        """Pairs of a prompt and the tokens that PyTorch continues it with."""
        found = json.loads((self.path / "pytorch_greedy.json").read_text())
        return list(zip(found["prompts"], found["tokens"], strict=True))


def require(name):
    """Return an export, or skip the test."""
    path = folder() / name
    if not (path / "argv.json").is_file():
        pytest.skip(f"the export {name} is not beside the clone; OPENQAIC_LLM_EXPORTS names the folder")
    return Export(path)


class Decoder:
    """A compiled decoder, driven as its client drives one: caches are never passed, the shapes choose the graph."""

    def __init__(self, folder):
        self.context = qaicrt.Context()
        self.queue = qaicrt.Queue(self.context, 0)
        self.qpc = qaicrt.Qpc(str(folder))
        self.program = qaicrt.Program(self.context, 0, self.qpc, qaicrt.QAicProgramProperties())
        assert self.program.load() == QStatus.QS_SUCCESS
        assert self.program.activate() == QStatus.QS_SUCCESS
        mappings = self.qpc.getBufferMappings()
        self.index = {mapping.bufferName: mapping.index for mapping in mappings}
        self.buffers = [qaicrt.QBuffer(bytes(mapping.size)) for mapping in mappings]
        self.dims = qaicrt.BufferDimensionsVecRef([(1, [mapping.size]) for mapping in mappings])
        self.exec_obj = qaicrt.ExecObj(self.context, self.program)
        logits = mappings[self.index["logits"]]
        self.logits_type = np.float16 if "16" in str(logits.dataType) else np.float32
        for name in self.index:
            if name.startswith("past_"):
                self._set(name, np.zeros(0))

    def _set(self, name, array):
        index = self.index[name]
        self.buffers[index] = qaicrt.QBuffer(array.tobytes())
        self.dims[index] = (array.itemsize, array.shape or (1,))

    def step(self, tokens, positions, vocabulary, **more):
        """Run one chunk or one token of each row; returns the logits of the last position of each row."""
        self._set("input_ids", np.asarray(tokens, np.int64))
        self._set("position_ids", np.asarray(positions, np.int64))
        for name, array in more.items():
            self._set(name, array)
        self._set("logits", np.zeros((len(tokens), 1, vocabulary), self.logits_type))
        assert self.exec_obj.setData(self.buffers, self.dims) == QStatus.QS_SUCCESS
        assert self.queue.enqueue(self.exec_obj) == QStatus.QS_SUCCESS
        assert self.exec_obj.waitForCompletion() == QStatus.QS_SUCCESS
        status, results = self.exec_obj.getData()
        assert status == QStatus.QS_SUCCESS
        found = np.frombuffer(bytes(results[self.index["logits"]]), self.logits_type)
        return found.reshape(len(tokens), vocabulary).astype(np.float32)

    def prefill(self, prompt, vocabulary, **more):
        """Feed a prompt in chunks, padded with token 0 at position -1; returns the logits behind it."""
        count = -(-len(prompt) // CHUNK) * CHUNK
        tokens = np.zeros(count, np.int64)
        positions = np.full(count, -1, np.int64)
        tokens[: len(prompt)] = prompt
        positions[: len(prompt)] = np.arange(len(prompt))
        logits = None
        for start in range(0, count, CHUNK):
            piece = slice(start, start + CHUNK)
            logits = self.step(tokens[None, piece], positions[None, piece], vocabulary, **more)
        return logits[0]
