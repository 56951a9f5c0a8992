"""Programs with some nodes in higher precision, compiled and judged one after the other."""

import math
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import sched_getaffinity
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic import _core
from qaic.accuracy.decoding import Decoder, Passage
from qaic.accuracy.observed import Kind, ObservedNode
from qaic.accuracy.precision_search.targets import Score, Target
from qaic.accuracy.prepared import PreparedModel
from qaic.accuracy.propagation import noise, parts_at_outputs
from qaic.accuracy.reports.precision_accuracy import PrecisionAccuracy
from qaic.compiler.cache import open_cache
from qaic.compiler.calibration.collector import CORES, load_program
from qaic.compiler.diagnostics.messages import silenced

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Operation:
    """Nodes that are kept together."""

    #: Names in the form of a node precision file.
    names: tuple[str, ...]


def ranked_operations(accuracy: PrecisionAccuracy, nodes: Sequence[ObservedNode]) -> list[Operation]:
    """List the operations that are rounded, by the largest error that needs them; overflow is the largest."""
    readers: dict[str, list[int]] = {}
    for at, node in enumerate(nodes):
        for name in node.inputs:
            readers.setdefault(name, []).append(at)
    errors: list[tuple[float, int, list[int]]] = []
    columns = (accuracy.nodes[name].tolist() for name in ("own_sqnr_db", "inherited_sqnr_db"))
    parts = parts_at_outputs(nodes, *columns)
    for at, (node, row) in enumerate(zip(nodes, accuracy.nodes, strict=True)):
        own = noise(float(row["own_sqnr_db"]))
        of_weights = own * float(row["weights_share"])
        size = math.inf if row["overflow"] > 0 else (own - of_weights) * parts[at]
        errors.append((size, at, [at, *readers.get(node.value, ())]))
        errors.append((of_weights * parts[at], at, [at]))
    found: dict[Operation, None] = {}
    for _, _, places in sorted(errors, key=lambda item: (-item[0], item[1], len(item[2]))):
        found |= {Operation(nodes[at].kept_by): None for at in places if nodes[at].kind is not Kind.FLOAT}
    return list(found)


#: programs that run at the same time; each has a thread of the engine
_MOST_WORKERS: Final = 8


class Trials:
    """Judges sets of operations; each set once.

    Parameters
    ----------
    source : PreparedModel
        The model.
    keep : str
        Precision of the operations of a set: ``fp32`` or ``fp16``.
    target : Target
        The metric.
    decoder : Decoder or None
        Reader of logits if passages are prompts, else None.
    passages : sequence of Passage
        Samples with the results of the reference.
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

    def score(self, operations: Sequence[Operation]) -> Score:
        """Return the metric with some operations in higher precision. Blocking; Ctrl-C ends it."""
        names = tuple(dict.fromkeys(name for operation in operations for name in operation.names))
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
            return run_passages(path, self._passages, self._decoder, self._source.options.aic_num_cores)


def run_passages(
    path: Path, passages: Sequence[Passage], decoder: Decoder | None, cores: int
) -> list[Arrays]:
    """Run a program on the inputs of passages; return the compared outputs of each.

    Prompts run one after the other, because they change state; other samples run in parallel, each on
    `cores` of the virtual card.
    """
    has_state = decoder is not None or any(len(passage.feeds) > 1 for passage in passages)
    most = min(len(sched_getaffinity(0)), _MOST_WORKERS, len(passages), CORES // max(cores, 1))
    workers = 1 if has_state else max(1, most)
    program = load_program(path, workers)
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
