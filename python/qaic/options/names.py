"""Spelling of option names.

One option is written in many ways: ``aic_num_cores`` in Python, ``aic-num-cores`` in a YAML file,
``-aic-num-cores`` on a command line. This module brings all of them to one key and
finds the name a typing error was meant to be.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Matching is quadratic in the length; no option name comes near this many characters.
_LONGEST_COMPARED = 80

#: Below this likeness (0 to 1) a suggestion is more often confusing than right.
_LEAST_LIKENESS = 0.6


def normalize(key: str) -> str:
    """Bring any spelling of an option name to its lookup key.

    Parameters
    ----------
    key
        Name as the user wrote it: hyphens, underscores, spaces, any case, leading dashes.

    Returns
    -------
    str
        Lower case, words joined by ``_``, without leading dashes.
    """
    return key.strip().lstrip("-").replace("-", "_").replace(" ", "_").lower()


def nearest(key: str, names: Iterable[str]) -> str | None:
    """Return the name that is most like ``key``, or None when nothing is near.

    Parameters
    ----------
    key
        Name as the user wrote it.
    names
        Lookup keys to choose from.
    """
    wanted = normalize(key)[:_LONGEST_COMPARED]
    found = difflib.get_close_matches(wanted, list(names), n=1, cutoff=_LEAST_LIKENESS)
    return found[0] if found else None


def in_style_of(name: str, like: str) -> str:
    """Write a canonical name in the style of another spelling, so that it can be pasted where that one stood.

    Parameters
    ----------
    name
        Canonical name, with underscores.
    like
        Spelling whose leading dashes and word separator are taken over.
    """
    dashes = like[: len(like) - len(like.lstrip("-"))]
    hyphenated = bool(dashes) or ("-" in like and "_" not in like)
    return dashes + (name.replace("_", "-") if hyphenated else name)
