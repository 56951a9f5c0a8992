"""What a search has to reach: a metric of the outputs, and its bound."""

from __future__ import annotations

import importlib
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from qaic.accuracy.metrics import OutputSums
from qaic.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    Outputs = Mapping[str, NDArray[Any]]

_BOUND: Final = re.compile(r"\s*(.+?)\s*>=\s*([0-9.eE+-]+)\s*(%?)\s*")
_EXPECTED: Final = "sqnr>=40, cosine>=0.999, same>=99.5%, or module:function>=NUMBER"


@dataclass(frozen=True, slots=True)
class Target:
    """A metric and the smallest value of it that will do.

    Parameters
    ----------
    text
        As the user gave it.
    metric
        ``sqnr``, ``cosine``, ``same``, or the name of a function.
    bound
        The smallest value; of ``same`` a share.
    function
        Of the user: outputs and those of the reference, each a list with one dictionary for each sample, to
        a number.
    """

    text: str
    metric: str
    bound: float
    function: Callable[[Sequence[Outputs], Sequence[Outputs]], float] | None = None

    def value(self, found: Sequence[Outputs], reference: Sequence[Outputs]) -> float:
        """Return the metric: of several outputs that of the worst; NaN counts as minus infinity."""
        if self.function is not None:
            value = float(self.function(found, reference))
            return -math.inf if math.isnan(value) else value
        values = []
        for name in reference[0]:
            sums = OutputSums(name)
            for expected, made in zip(reference, found, strict=True):
                sums.add(expected[name], made[name])
            result = sums.result()
            if not result.elements:
                continue
            if self.metric == "same":
                if not math.isnan(result.same):
                    values.append(result.same)
            elif self.metric == "cosine":
                values.append(1.0 if result.is_equal else result.cosine)
            else:
                values.append(result.sqnr_db)
        if not values:
            raise OptionError(
                f"target: {self.metric!r} says nothing about the outputs {', '.join(reference[0])}; expected "
                "a metric that does, as sqnr>=40",
                code="option.target",
            )
        return min(-math.inf if math.isnan(value) else value for value in values)

    def holds(self, value: float) -> bool:
        """Whether a value of the metric will do."""
        return value >= self.bound

    def show(self, value: float) -> str:
        """Return a value as people read it."""
        if self.metric == "same":
            return f"{value:.1%}"
        if self.metric == "sqnr":
            return f"{value:.1f} dB"
        return f"{value:.4g}"


def parse(target: object) -> Target:
    """Read a target.

    Raises
    ------
    OptionError
        It is none.
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
    if metric not in {"sqnr", "cosine", "same"}:
        raise _wrong(f"the metric {name!r}")
    if percent:
        bound /= 100
    if metric == "same" and bound > 1:
        raise _wrong(f"a share of {number} (write {number}%)")
    return Target(str(target), metric, bound)


def _function(name: str) -> Callable[[Sequence[Outputs], Sequence[Outputs]], float]:
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise _wrong(f"{name!r}, which cannot be imported ({error})") from error
    if not callable(function):
        raise _wrong(f"{name!r}, which is no function")
    return function  # type: ignore[no-any-return]


def _wrong(found: str) -> OptionError:
    return OptionError(f"target: found {found}, expected {_EXPECTED}", code="option.target")
