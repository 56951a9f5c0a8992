"""Decisions of outputs: the index of the largest value along the last dimension, or a user's function."""

import importlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qaic.errors import OptionError

#: function from the name of an output and its array to an array of decisions, or to one decision
Decide: TypeAlias = Callable[[str, NDArray[Any]], object]


def imported(name: str) -> Callable[..., object]:
    """Import a function by ``module:function``.

    Raises ValueError, which states the reason, if there is no such function.
    """
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name!r}, which cannot be imported ({error})") from error
    if not callable(function):
        raise ValueError(f"{name!r}, which is not a function")  # noqa: TRY004  # the error for a missing function
    return function  # type: ignore[no-any-return]


def decision_function(given: object) -> Decide | None:
    """Return the function that a user passed or named; None for the largest of the last dimension.

    Raises OptionError if the value is not a function or cannot be imported.
    """
    if given is None or callable(given):
        return given
    found = repr(given)
    if isinstance(given, str) and ":" in given:
        try:
            return imported(given)
        except ValueError as error:
            found = str(error)
    raise OptionError(
        f"decide: found {found}, expected a function of a name and an array, or module:function",
        code="option.accuracy_decide",
    )


def decisions(
    name: str, reference: NDArray[Any], found: NDArray[Any], decide: Decide | None
) -> tuple[int, int]:
    """Count the decisions of an output of one sample, and the equal ones."""
    if decide is not None:
        a, b = (np.asarray(decide(name, array)) for array in (reference, found))
        # One for each decision of the reference; all differ if the numbers of decisions differ.
        return a.size, int(np.count_nonzero(a == b)) if a.shape == b.shape else 0
    if reference.dtype.kind in "iub":
        return reference.size, int(np.count_nonzero(reference == found))
    if not reference.ndim or reference.shape[-1] <= 1 or not reference.size:
        return 0, 0
    width = reference.shape[-1]
    a, b = reference.reshape(-1, width), found.reshape(-1, width)
    decided = a.argmax(axis=1) == b.argmax(axis=1)
    # NaN makes a decision differ, unless the reference has NaN, too.
    decided &= np.isnan(a).any(axis=1) == np.isnan(b).any(axis=1)
    return decided.size, int(np.count_nonzero(decided))
