"""The target of a search: a metric of the outputs, and its bound."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic.accuracy.decisions import Decide, imported
from qaic.accuracy.metrics import OutputAccuracy, OutputSums
from qaic.errors import OptionError
from qaic.support.text import counted, three_digits

Outputs = Mapping[str, NDArray[Any]]


_BOUND: Final = re.compile(r"\s*(.+?)\s*>=\s*([0-9.eE+-]+)\s*(%?)\s*")
_EXPECTED: Final = "sqnr>=40, cosine>=0.999, same>=99.5%, tokens>=64, or module:function>=NUMBER"
_METRICS: Final = frozenset({"sqnr", "cosine", "same", "tokens"})
#: metrics with a largest value of 1, in the form of a target
_LARGEST: Final = {"same": "100%", "cosine": "1"}
#: parts of the samples that are left out in turn, to estimate the standard error
_PARTS: Final = 10
#: standard errors by which a value must exceed its bound
_STANDARD_ERRORS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Score:
    """Value of a metric on some samples."""

    #: The metric.
    value: float
    #: Standard error on other samples of the same kind; 0 if it is not known.
    standard_error: float = 0.0

    @property
    def safe(self) -> float:
        """Return a value that other samples are unlikely to miss."""
        return self.value - _STANDARD_ERRORS * self.standard_error


@dataclass(frozen=True, slots=True)
class Target:
    """A metric and its smallest acceptable value."""

    #: Text as the user gave it.
    text: str
    #: ``sqnr``, ``cosine``, ``same``, ``tokens``, or the name of a function.
    metric: str
    #: The smallest value; a share for ``same``.
    bound: float
    #: Function of the user: takes the outputs and those of the reference, each a list with one dictionary for
    #: each sample, and returns a number.
    function: Callable[[Sequence[Outputs], Sequence[Outputs]], float] | None = None
    #: Decision of an output; None for the largest of its last dimension.
    decide: Decide | None = None

    @property
    def tokens(self) -> int | None:
        """Number of tokens of the target; None if the target is about outputs."""
        return int(self.bound) if self.metric == "tokens" else None

    def score(self, found: Sequence[Outputs], reference: Sequence[Outputs]) -> Score:
        """Return the metric and its standard error, from leaving out parts of the samples in turn."""
        # One sample determines the first different token, so it has no standard error.
        if self.metric == "tokens":
            return Score(float(min(map(_equal_tokens, found, reference))))
        if (function := self.function) is None:
            sums = [_sums(*pair, self.decide) for pair in zip(found, reference, strict=True)]
            self._check(sums)

            def value(chosen: Sequence[int]) -> float:
                """Return the metric of the worst output; NaN if it has no meaning."""
                values = map(self._of, _results([sums[at] for at in chosen]))
                return min((value for value in values if not math.isnan(value)), default=math.nan)
        else:

            def value(chosen: Sequence[int]) -> float:
                value = float(function([found[at] for at in chosen], [reference[at] for at in chosen]))
                return -math.inf if math.isnan(value) else value

        every = range(len(found))
        whole = value(every)
        parts = min(_PARTS, len(found))
        if parts < 2 or not math.isfinite(whole):
            return Score(whole)
        without = [value([at for at in every if at % parts != left]) for left in range(parts)]
        if not all(map(math.isfinite, without)):
            return Score(whole)
        return Score(whole, math.sqrt((parts - 1) * float(np.var(without))))

    def _of(self, result: OutputAccuracy) -> float:
        """Return the metric of one output; NaN if it has no meaning."""
        if result.elements == result.not_finite:
            return math.nan
        if self.metric == "same":
            return result.same
        value = (1.0 if result.is_equal else result.cosine) if self.metric == "cosine" else result.sqnr_db
        return -math.inf if math.isnan(value) else value

    def _check(self, samples: Sequence[Sequence[OutputSums]]) -> None:
        """Refuse outputs for which the metric has no meaning."""
        results = _results(samples)
        if any(not math.isnan(self._of(result)) for result in results):
            return
        names = ", ".join(result.name for result in results)
        if all(result.elements == result.not_finite for result in results):
            raise OptionError(
                f"samples: found no finite element in the outputs {names} in float32, expected samples as "
                "the model gets them in use",
                code="option.samples",
            )
        raise OptionError(
            f"target: {self.metric!r} does not apply to the outputs {names}; expected another metric, "
            "such as sqnr>=40",
            code="option.target",
        )

    def holds(self, score: Score, *, safely: bool) -> bool:
        """Return True if a value of the metric reaches the target, on these or also on other samples."""
        return (score.safe if safely else score.value) >= self.bound

    def show(self, value: float) -> str:
        """Return a value with three digits, or more if it would seem to reach or to miss the bound."""
        if self.metric == "tokens":
            return counted(round(value), "token")
        if value == math.inf:
            return "no error"
        scale, unit = {"same": (100, " %"), "sqnr": (1, " dB")}.get(self.metric, (1, ""))
        number, bound = scale * value, scale * self.bound
        texts = [three_digits(number), *(f"{number:.{digits}g}" for digits in range(4, 18))]
        shown = next(one for one in texts if (float(one.replace(",", "")) >= bound) == (number >= bound))
        return f"{shown}{unit}"


def _results(samples: Sequence[Sequence[OutputSums]]) -> list[OutputAccuracy]:
    """Add the sums of samples for each output."""
    results = []
    for sums in zip(*samples, strict=True):
        total = OutputSums(sums[0].name)
        for item in sums:
            total.merge(item)
        results.append(total.result())
    return results


def _sums(found: Outputs, reference: Outputs, decide: Decide | None) -> list[OutputSums]:
    """Compare the outputs of one sample."""
    made = []
    for name, expected in reference.items():
        made.append(OutputSums(name, decide))
        made[-1].add(expected, found[name])
    return made


def _equal_tokens(found: Outputs, reference: Outputs) -> int:
    """Count the tokens of a prompt before the first different token."""
    ((name, expected),) = reference.items()
    differs = np.flatnonzero(expected.argmax(axis=-1) != found[name].argmax(axis=-1))
    return int(differs[0]) if differs.size else len(expected)


def parse(target: object, decide: Decide | None = None) -> Target:
    """Read a target.

    `target` is the goal as the user gave it; `decide` returns the decision of an output. Raises OptionError
    if the text is no target.
    """
    found = _BOUND.fullmatch(target) if isinstance(target, str) else None
    if found is None:
        raise _wrong(repr(target))
    name, number, percent = found.groups()
    try:
        bound = float(number)
    except ValueError:
        raise _wrong(f"the bound {number!r}") from None
    if ":" in name:
        return Target(str(target), name, bound / 100 if percent else bound, _function(name))
    metric = name.lower()
    if metric not in _METRICS:
        raise _wrong(f"the metric {name!r}")
    if metric == "tokens" and (percent or bound < 1 or bound != int(bound)):
        raise _wrong(f"{number}{percent} tokens")
    if percent:
        bound /= 100
    if metric in _LARGEST and bound > 1:
        raise _wrong(f"{number}{percent} for {metric}, which is at most {_LARGEST[metric]}")
    return Target(str(target), metric, bound, decide=decide)


def _function(name: str) -> Callable[[Sequence[Outputs], Sequence[Outputs]], float]:
    try:
        return imported(name)  # type: ignore[return-value]
    except ValueError as error:
        raise _wrong(str(error)) from error


def _wrong(found: str) -> OptionError:
    return OptionError(f"target: found {found}, expected {_EXPECTED}", code="option.target")
