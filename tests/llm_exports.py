"""Models that a client of the card exported, with its flags and with PyTorch's tokens for prompts.

The models are not part of the project. `OPENQAIC_LLM_EXPORTS` names their folder; by default, it is the
folder `shared/fixtures/llm` next to the clone. Tests that need a missing model are skipped.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest

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
        """The same flags without reduced precision."""
        return [f for f in self.flags if not f.startswith(("-convert-to-fp16", "-custom-IO-list-file"))]

    @cached_property
    def specializations(self):
        return json.loads((self.path / "specializations.json").read_text())["specializations"]

    @cached_property
    def slots(self):
        """Rows of the caches that `batch_index` selects; None without continuous batching."""
        found = self.specializations[0]["symbols"].get("full_batch_size")
        return None if found is None else int(found)

    @cached_property
    def greedy(self):
        """Pairs of a prompt and PyTorch's continuation of it."""
        found = json.loads((self.path / "pytorch_greedy.json").read_text())
        return list(zip(found["prompts"], found["tokens"], strict=True))


def require(name):
    """Return an export, or skip the test."""
    path = folder() / name
    if not (path / "argv.json").is_file():
        pytest.skip(f"the export {name} is not beside the clone; OPENQAIC_LLM_EXPORTS names the folder")
    return Export(path)


def continued(client, slots, prompt, count, slot=0):
    """Continue a prompt greedily; return the tokens, and the difference of the two largest logits at each."""
    more = {} if slots is None else {"batch_index": np.array([[slot]])}
    logits = client.prefill(prompt, **more)
    rows = slots or 1
    if slots is not None:
        more = {"batch_index": np.arange(slots)[:, None]}
    tokens, margins = [], []
    for place in range(len(prompt), len(prompt) + count):
        second, first = np.sort(logits.astype(np.float32))[-2:]
        tokens.append(int(logits.argmax()))
        margins.append(float(first - second))
        # The other slots are unused: position -1 writes nothing.
        ids, positions = np.zeros((rows, 1), np.int64), np.full((rows, 1), -1)
        ids[slot], positions[slot] = tokens[-1], place
        logits = client.step(ids, positions, **more)["logits"][slot, 0]
    return tokens, margins
