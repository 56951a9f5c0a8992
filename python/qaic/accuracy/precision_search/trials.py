"""Programs with some nodes in higher precision, compiled and judged one after the other."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from os import sched_getaffinity
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from qaic.accuracy.capture import load
from qaic.compiler.cache import open_cache
from qaic.compiler.diagnostics.record import silenced

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from qaic import _core
    from qaic.accuracy.decoding import Decoder, Passage
    from qaic.accuracy.precision_search.candidates import Unit
    from qaic.accuracy.precision_search.targets import Score, Target
    from qaic.accuracy.prepared import PreparedModel

    Arrays = dict[str, NDArray[Any]]

#: programs that run side by side; each of them has a thread of the engine
_MOST_WORKERS: Final = 8


class Trials:
    """Judges sets of units; each set once.

    Parameters
    ----------
    source : PreparedModel
        The model.
    keep : str
        ``fp32`` or ``fp16``, what units of a set compute in.
    target : Target
        The metric.
    decoder : Decoder or None
        How logits are read, where passages are prompts.
    passages : sequence of Passage
        Samples with what the reference gives for them.
    """

    def __init__(
        self,
        source: PreparedModel,
        keep: str,
        target: Target,
        decoder: Decoder | None,
        passages: Sequence[Passage],
    ) -> None:
        self._source = source
        self._keep = keep
        self._target = target
        self._decoder = decoder
        self._passages = passages
        self._expected = [passage.reference for passage in passages]
        self._known: dict[frozenset[str], Score] = {}
        self.count = 0

    def score(self, units: Sequence[Unit]) -> Score:
        """Return the metric with some units in higher precision. Blocking; Ctrl-C ends it."""
        names = tuple(dict.fromkeys(name for unit in units for name in unit.names))
        key = frozenset(names)
        if key not in self._known:
            if names:
                self._known[key] = self._target.score(self._run(names), self._expected)
            else:
                deployed = [passage.deployed for passage in self._passages]
                self._known[key] = self._target.score(deployed, self._expected)
        return self._known[key]

    def _run(self, names: Sequence[str]) -> list[Arrays]:
        self.count += 1
        half, single = (names, ()) if self._keep == "fp16" else ((), names)
        with open_cache().work_folder() as folder, silenced():
            path = folder / "program.bin"
            self._source.write(path, half, single)
            self._source.progress.stage(f"trial {self.count}")
            return run_passages(path, self._passages, self._decoder)


def run_passages(path: Path, passages: Sequence[Passage], decoder: Decoder | None) -> list[Arrays]:
    """Run a program on the inputs of passages; returns what is judged of each.

    Prompts run one after the other, because they leave state behind; other samples side by side.
    """
    has_state = decoder is not None or any(len(passage.feeds) > 1 for passage in passages)
    workers = 1 if has_state else min(len(sched_getaffinity(0)), _MOST_WORKERS, len(passages))
    program = load(path, workers)
    if workers == 1:
        return [_one(program, passage, decoder) for passage in passages]
    found: list[Arrays] = []
    waiting: deque[_core.Inference] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for passage in passages:
                inference = program.prepare(passage.feeds[0][0])
                pool.submit(inference.start)
                waiting.append(inference)
                if len(waiting) > workers:
                    found.append(_judged(waiting.popleft().result(), passage))
            while waiting:
                found.append(_judged(waiting.popleft().result(), passages[0]))
        finally:
            for inference in waiting:
                inference.cancel()
    return found


def _judged(outputs: Arrays, passage: Passage) -> Arrays:
    return {name: outputs[name] for name in passage.reference}


def _one(program: _core.InferenceSet, passage: Passage, decoder: Decoder | None) -> Arrays:
    if decoder is None:
        return _judged(program.run(passage.feeds[0][0], None, None, None), passage)
    rows = []
    for number, (feed, place) in enumerate(passage.feeds, start=1):
        found = program.run(feed, None, None, None)
        if number > len(passage.feeds) - passage.judged:
            rows.append(decoder.row(found[decoder.logits], place or 0))
    return {decoder.logits: np.stack(rows)}
