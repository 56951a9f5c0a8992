"""`search`: the smallest set of nodes that must stay in a higher precision to reach a target.

Operations are ranked by their contribution to the error of the outputs. The search adds operations in growing
steps until the target holds, and bisects the last step. Then it removes each operation without which the
target holds. The set is therefore 1-minimal on the samples of the search, where the target must hold with a
margin. Other samples verify the set.
"""

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import onnx

from qaic.accuracy.capture import Totals, loaded
from qaic.accuracy.comparison import check_tokens, compile_options_of, warn_of_reports
from qaic.accuracy.decisions import Decide, decision_function
from qaic.accuracy.decoding import Decoder
from qaic.accuracy.precision_search.plan import PrecisionPlan
from qaic.accuracy.precision_search.targets import Score, Target, parse
from qaic.accuracy.precision_search.trials import Operation, Trials, ranked_operations, run_passages
from qaic.accuracy.prepared import PreparedModel, merged, named, prepared
from qaic.accuracy.reports.precision_accuracy import TYPES, PrecisionAccuracy
from qaic.accuracy.samples import Samples
from qaic.compiler.cache import open_cache
from qaic.compiler.diagnostics.messages import silenced
from qaic.compiler.driver import title_of
from qaic.errors import OptionError, StateError
from qaic.support.text import counted

#: one of this many samples is held out
_HELD_BACK: Final = 5
_KEPT: Final = ("fp32", "fp16")


def search(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    to: str,
    samples: str | os.PathLike[str] | Iterable[Mapping[str, object]],
    target: str,
    keep: str = "fp32",
    tokens: int | None = None,
    decide: str | Decide | None = None,
    **compile_options: object,
) -> PrecisionPlan:
    """Find a smallest set of nodes that must stay in float32 to reach a target.

    The set is 1-minimal: if any one operation is removed from it, the program misses the target or its
    margin. An operation is a node together with the nodes that are fused with it; a node of a function counts
    in all calls. The search uses all samples except the last fifth, and requires a margin of three standard
    errors; it verifies the result on the last fifth. The same model, samples and options give the same set.

    Blocking: one comparison, then one compilation and a run of the samples for each candidate set. Ctrl-C
    ends the search. The compile cache does not change. Samples and float32 outputs stay in memory.

    Parameters
    ----------
    model, samples, tokens, decide, **compile_options
        As for `compare`.
    to
        One precision, as for `compare`.
    target
        ``sqnr>=40`` (dB), ``cosine>=0.999``, ``same>=99.5%`` (equal decisions), ``tokens>=64`` (equal tokens
        of a decoder before the first difference, for every prompt), or ``module:function>=NUMBER``. The
        function gets the outputs of the program and those of float32, each a list with one dictionary of
        arrays for each sample.
    keep
        Precision of these nodes: ``fp32``, or ``fp16`` if `to` has integers.

    Returns
    -------
    PrecisionPlan
        The nodes, and the improvement.

    Raises
    ------
    qaic.errors.OptionError
        The target or an option is wrong, or a sample does not fit the model.
    qaic.errors.StateError
        The target does not hold even with all nodes in the higher precision.
    qaic.errors.CompileError
        The model cannot be compiled.
    """
    started = time.monotonic()
    wanted = parse(target, decision_function(decide))
    check_tokens(tokens)
    names = named(to)
    if len(names) != 1:
        raise OptionError(
            f"to: found {', '.join(names)}, expected one precision to search in", code="option.to"
        )
    if keep not in _KEPT or (keep == "fp16" and "int" not in names[0]):
        raise OptionError(
            f"keep: found {keep!r} for {names[0]}, expected fp32, or fp16 for int8 or int16",
            code="option.accuracy_keep",
        )
    if wanted.tokens is not None and tokens not in {None, wanted.tokens}:
        raise OptionError(
            f"tokens: found {tokens} and the target {wanted.text}, expected one number of tokens for both",
            code="option.accuracy_tokens",
        )
    given = Samples(samples)
    count = wanted.tokens if tokens is None else tokens
    with given.named_in_errors(compile_options):
        options = compile_options_of(model, names[0], given, count, compile_options)
        warn_of_reports(options)
        with prepared(model, options, "searching") as source:
            found = _Search(source, given, count, keep, wanted).run()
    nodes = found["nodes"]
    half, single = (nodes, ()) if keep == "fp16" else ((), nodes)
    return PrecisionPlan(
        model=title_of(model),
        to=names[0],
        target=wanted,
        keep=keep,
        seconds=time.monotonic() - started,
        lists=merged(options, half, single),
        **found,
    )


class _Search:
    def __init__(
        self, source: PreparedModel, samples: Samples, tokens: int | None, keep: str, target: Target
    ) -> None:
        self._source = source
        self._target = target
        self._is_safe = True
        with silenced(), loaded(source) as program:
            totals = Totals(program.twin)
            self._passages = list(program.passages(samples, tokens, totals))
            self._decoder = None if tokens is None else Decoder(program.inputs, program.reference)
        capture = totals.result()
        self._held = len(self._passages) // _HELD_BACK
        seen = self._passages[: len(self._passages) - self._held]
        self._trials = Trials(source, keep, target, self._decoder, seen)
        self._keep = keep
        self._ranked = ranked_operations(PrecisionAccuracy("", capture, 0.0), capture.nodes)
        self._order = {
            name: (at, place)
            for at, node in reversed(list(enumerate(capture.nodes)))
            for place, name in enumerate(node.kept_by)
        }

    def run(self) -> dict[str, Any]:
        """Search; returns fields of the plan."""
        before = self._trials.score([])
        chosen: list[Operation] = []
        if not self._target.holds(before, safely=True):
            chosen = self._least(self._grown())
        names = sorted({name for one in chosen for name in one.names}, key=self._order.__getitem__)
        after = self._trials.score(chosen)
        back = self._verified(names)
        reached = self._target.holds(after, safely=False) and (
            math.isnan(back.value) or self._target.holds(back, safely=False)
        )
        return {
            "nodes": tuple(names),
            "operations": len(chosen),
            "of": len(self._ranked),
            "before": before.value,
            "after": after.value,
            "standard_error": after.standard_error,
            "held_out": back.value,
            "is_reached": reached,
            "is_safe": self._is_safe,
            "samples": len(self._passages) - self._held,
            "runs": self._trials.count,
        }

    def _holds(self, operations: Sequence[Operation]) -> bool:
        return self._target.holds(self._trials.score(operations), safely=self._is_safe)

    def _verified(self, names: Sequence[str]) -> Score:
        """Judge the set on the held-out samples."""
        if not self._held:
            return Score(math.nan)
        half, single = (names, ()) if self._keep == "fp16" else ((), names)
        back = self._passages[-self._held :]
        with open_cache().work_folder() as folder, silenced():
            path = folder / "program.bin"
            self._source.write(path, half, single)
            found = run_passages(path, back, self._decoder, self._source.options.aic_num_cores)
        return self._target.score(found, [passage.reference for passage in back])

    def _grown(self) -> list[Operation]:
        """Take the first operations in growing steps until the target holds, and bisect the last step."""
        ranked = self._ranked
        low, high = 0, 1
        while not self._holds(ranked[:high]):
            if high >= len(ranked):
                return self._grown_without_margin()
            low, high = high, min(2 * high, len(ranked))
        while high - low > 1:
            middle = (low + high) // 2
            if self._holds(ranked[:middle]):
                high = middle
            else:
                low = middle
        return list(ranked[:high])

    def _grown_without_margin(self) -> list[Operation]:
        """Use the target itself if all operations together leave no margin."""
        if not self._is_safe:
            score = self._trials.score(self._ranked)
            raise StateError(
                f"target {self._target.text}: found {self._target.show(score.value)} with all "
                f"{counted(len(self._ranked), 'operation')} in {TYPES[self._keep]}, expected at least "
                f"{self._target.show(self._target.bound)}; the remaining error comes from "
                "inputs, outputs or constants of another precision",
                code="state.target_out_of_reach",
            )
        self._is_safe = False
        return [] if self._holds([]) else self._grown()

    def _least(self, taken: list[Operation]) -> list[Operation]:
        """Remove operations until a whole round finds that each is needed.

        Operations that add least come first. A success doubles the number of operations that are tried at
        once, and a failure halves it.
        """
        size = max(1, len(taken) // 4)
        is_less = True
        while is_less:
            is_less = False
            # An operation is needed until another is removed. Errors may cancel, so it is tried again.
            needed: set[Operation] = set()
            while open_operations := [operation for operation in taken if operation not in needed]:
                tried = set(open_operations[-size:])
                rest = [operation for operation in taken if operation not in tried]
                if self._holds(rest):
                    taken, is_less, size = rest, True, 2 * size
                elif len(tried) == 1:
                    needed |= tried
                else:
                    size = max(1, len(tried) // 2)
        return taken
