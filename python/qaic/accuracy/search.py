"""`search`: a smallest set of nodes that has to stay in float32 for a target to hold.

Nodes are ranked by what they add, those that overflow in front. The first of them are taken in growing
steps until the target holds; then every node is taken out that it holds without, until none is left. So the
set is 1-minimal on the samples that are searched on, and it is verified on samples that are not among them.
"""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qaic.accuracy.capture import Totals, instrumented, load, with_kept
from qaic.accuracy.comparison import compile_options_of, title_of
from qaic.accuracy.instrument import REFERENCE, STATISTICS
from qaic.accuracy.observed import Kind
from qaic.accuracy.precisions import named
from qaic.accuracy.report import PrecisionAccuracy
from qaic.accuracy.samples import Samples
from qaic.accuracy.targets import parse
from qaic.compiler.backend.cpu.qpc_writer import write_unchecked
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.diagnostics.record import silenced
from qaic.compiler.driver import opened
from qaic.compiler.pipeline import lower
from qaic.errors import OptionError, StateError
from qaic.options.models import CompileOptions
from qaic.support.atomic_io import replace_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    import onnx
    from numpy.typing import NDArray

    from qaic.accuracy.observed import ObservedNode
    from qaic.accuracy.targets import Target

    Arrays = dict[str, NDArray[Any]]

#: one of so many samples is kept back
_HELD_BACK = 5
#: nodes that are taken at first; twice as many each time
_FIRST = 1


@dataclass(frozen=True, slots=True)
class PrecisionPlan:
    """Nodes that stay in float32, and what that gains.

    Parameters
    ----------
    model, to, target
        What was asked for.
    nodes
        First outputs of the nodes, as node precision files have them, in the order of the graph.
    of
        Number of nodes that could have been chosen.
    before, after
        The metric of the target on the samples that were searched on, without the nodes and with them.
    held_out
        The same on samples that the search has not seen, with the nodes; NaN where there were too few
        samples.
    is_reached
        Whether the target holds on all samples.
    runs
        Number of programs that were compiled and run.
    seconds
        How long it took.
    """

    model: str
    to: str
    target: Target
    nodes: tuple[str, ...]
    of: int
    before: float
    after: float
    held_out: float
    is_reached: bool
    runs: int
    seconds: float

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write a node precision file, complete or not at all; the same plan gives the same bytes."""
        import yaml

        target = Path(path)
        lines = [
            f"# {len(self.nodes)} of {self.of} nodes stay in float32: {self.target.text} for {self.to}\n"
        ]
        lists = {"FP32NodeInstanceNames": list(self.nodes)}
        text = "".join(lines) + yaml.safe_dump(lists, sort_keys=False, allow_unicode=True, width=1 << 20)
        replace_bytes(target, text.encode())
        return target

    def to_json(self) -> dict[str, object]:
        """Return everything as values that JSON has."""
        return {
            "model": self.model,
            "to": self.to,
            "target": self.target.text,
            "nodes": list(self.nodes),
            "of": self.of,
            "before": _json(self.before),
            "after": _json(self.after),
            "held_out": _json(self.held_out),
            "is_reached": self.is_reached,
            "runs": self.runs,
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        """Return the plan as text."""
        show = self.target.show
        lines = [
            f"{self.model} in {self.to}: {len(self.nodes)} of {self.of} nodes stay in float32 "
            f"for {self.target.text}",
            f"before {show(self.before)}, after {show(self.after)}, "
            + (
                "no samples kept back"
                if math.isnan(self.held_out)
                else f"on samples kept back {show(self.held_out)}"
            )
            + f"; {self.runs} programs, {self.seconds:.1f} s",
            *(f"  {name}" for name in self.nodes),
        ]
        if not self.is_reached:
            lines.append(
                "the target does not hold on the samples that were kept back: search with more samples"
            )
        return "\n".join(lines)


def search(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    to: str,
    samples: str | os.PathLike[str] | Iterable[Mapping[str, object]],
    target: str,
    **compile_options: object,
) -> PrecisionPlan:
    """Search for a smallest set of nodes that has to stay in float32 for a target to hold.

    The set is 1-minimal: with any node taken out, the target is missed. It is found on the samples but for
    the last fifth, and verified on those. The same model, samples and options give the same set. Blocking:
    one comparison, then a compilation and a run of the samples for each set that is tried; Ctrl-C ends it.
    Nothing goes to the compile cache. Samples and outputs of the reference are held in memory.

    Parameters
    ----------
    model, samples, **compile_options
        As for `compare`.
    to
        One precision, as for `compare`.
    target
        ``sqnr>=40`` (dB), ``cosine>=0.999``, ``same>=99.5%`` of decisions; or ``module:function>=NUMBER``
        with a function of outputs and those of the reference: lists with a dictionary of arrays for each
        sample.

    Returns
    -------
    PrecisionPlan
        The nodes, and what they gain.

    Raises
    ------
    qaic.errors.OptionError
        The target or an option is wrong, or a sample does not fit the model.
    qaic.errors.StateError
        The target does not hold even with all nodes in float32.
    qaic.errors.CompileError
        The model cannot be compiled.
    """
    started = time.monotonic()
    wanted = parse(target)
    names = named(to)
    if len(names) != 1:
        raise OptionError(
            f"to: found {', '.join(names)}, expected one precision to search in", code="option.to"
        )
    given = Samples(samples)
    # Every set is calibrated by itself, as it is when the set is used: kept nodes are not measured.
    options = compile_options_of(names[0], given, compile_options)
    found = _Search(model, options, given, wanted).run()
    return PrecisionPlan(
        model=title_of(model), to=names[0], target=wanted, seconds=time.monotonic() - started, **found
    )


class _Search:
    """One search."""

    def __init__(self, model: Any, options: CompileOptions, samples: Samples, target: Target) -> None:
        self._model = model
        self._options = options
        self._samples = samples
        self._target = target
        self._runs = 0
        self._known: dict[frozenset[str], float] = {}
        self._seen: list[Arrays] = []
        self._kept_back: list[Arrays] = []
        self._expected: list[Arrays] = []
        self._expected_back: list[Arrays] = []

    def run(self) -> dict[str, Any]:
        """Search; returns fields of the plan."""
        with instrumented(self._model, self._options) as program:
            arrays = [dict(item) for item in program.samples(self._samples)]
            held = len(arrays) // _HELD_BACK
            totals = Totals(program.twin)
            outputs: list[Arrays] = []
            for sample in arrays:
                found = program.run(sample)
                totals.add(found)
                outputs.append({name: found[name] for name in found if name != STATISTICS})
        capture = totals.result()
        split = len(arrays) - held
        reference = [
            {
                name.removeprefix(REFERENCE): array
                for name, array in item.items()
                if name.startswith(REFERENCE)
            }
            for item in outputs
        ]
        deployed = [{name: item[name] for name in reference[0]} for item in outputs]
        self._seen, self._kept_back = arrays[:split], arrays[split:]
        self._expected, self._expected_back = reference[:split], reference[split:]
        before = self._target.value(deployed[:split], self._expected)
        self._known[frozenset()] = before
        ranked = _ranked(PrecisionAccuracy("", capture, 0.0), capture.nodes)
        chosen: list[str] = []
        if not self._target.holds(before):
            units = self._least([(*unit.fused, unit.name) for unit in self._grown(ranked)])
            # A name of a unit may not be needed, where its nodes round once more without it.
            chosen = [name for (name,) in self._least([(name,) for unit in units for name in unit])]
        after = self._value(chosen)
        back = math.nan
        if self._kept_back:
            back = self._measure(chosen, self._kept_back, self._expected_back)
        order = {
            name: (at, place)
            for at, node in enumerate(capture.nodes)
            for place, name in enumerate((*node.fused, node.name))
        }
        return {
            "nodes": tuple(sorted(chosen, key=lambda name: order[name])),
            "of": len(ranked),
            "before": before,
            "after": after,
            "held_out": back,
            "is_reached": self._target.holds(after) and (math.isnan(back) or self._target.holds(back)),
            "runs": self._runs,
        }

    def _grown(self, ranked: Sequence[ObservedNode]) -> list[ObservedNode]:
        """Take the first units in growing steps until the target holds."""
        count = _FIRST
        while True:
            taken = list(ranked[:count])
            names = [name for unit in taken for name in (*unit.fused, unit.name)]
            if self._holds(names):
                return taken
            if count >= len(ranked):
                raise StateError(
                    f"target {self._target.text}: found {self._target.show(self._value(names))} with all "
                    f"{len(ranked)} nodes in float32, expected at least "
                    f"{self._target.show(self._target.bound)}; what is left comes from "
                    "inputs, outputs or constants of another precision",
                    code="state.target_out_of_reach",
                )
            count = min(2 * count, len(ranked))

    def _least(self, taken: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """Take units out, many at a time and then one by one, until every one of them is needed."""
        size = max(1, len(taken) // 2)
        while True:
            is_less = False
            at = len(taken)
            # What was ranked last is needed least.
            while at > 0:
                begin = max(0, at - size)
                rest = taken[:begin] + taken[at:]
                if self._holds([name for unit in rest for name in unit]):
                    taken, is_less = rest, True
                at = begin
            if size == 1 and not is_less:
                return taken
            size = max(1, size // 2)

    def _holds(self, names: Sequence[str]) -> bool:
        return self._target.holds(self._value(names))

    def _value(self, names: Sequence[str]) -> float:
        key = frozenset(names)
        if key not in self._known:
            self._known[key] = self._measure(names, self._seen, self._expected)
        return self._known[key]

    def _measure(self, names: Sequence[str], samples: Sequence[Arrays], expected: Sequence[Arrays]) -> float:
        """Compile with some nodes in float32, and run samples."""
        self._runs += 1
        options = with_kept(self._options, names) if names else self._options
        with tempfile.TemporaryDirectory(prefix="openqaic-accuracy-") as folder, silenced():
            path = Path(folder, "program.bin")
            with opened(self._model) as source, Progress("searching") as progress:
                program, _ = lower(source, options, progress)
                plain = CompileOptions(
                    retained_state=options.retained_state,
                    combine_outputs=False,
                    aic_num_cores=options.aic_num_cores,
                )
                write_unchecked(path, program, plain)
            loaded = load(path)
            found = [loaded.run(sample, None, None, None) for sample in samples]
        return self._target.value([{name: item[name] for name in expected[0]} for item in found], expected)


def _ranked(accuracy: PrecisionAccuracy, nodes: Sequence[ObservedNode]) -> list[ObservedNode]:
    """Order the nodes that are rounded: those that overflow with their readers, then by own error."""
    rows = accuracy.nodes
    readers: dict[str, list[int]] = {}
    for at, node in enumerate(nodes):
        for name in node.inputs:
            readers.setdefault(name, []).append(at)
    first: dict[int, None] = {}
    for at, node in enumerate(nodes):
        if rows[at]["overflow"] > 0:
            first[at] = None
            # A reader in float16 would round what the node makes, and the sum of two such is one more.
            first |= dict.fromkeys(readers.get(node.value, ()))
    rest = sorted(
        (at for at in range(len(nodes)) if at not in first),
        key=lambda at: (_decibels(float(rows[at]["own_sqnr_db"])), at),
    )
    return [nodes[at] for at in (*first, *rest) if nodes[at].kind is not Kind.FLOAT]


def _decibels(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _json(value: float) -> object:
    if math.isfinite(value):
        return value
    return None if math.isnan(value) else "inf" if value > 0 else "-inf"
