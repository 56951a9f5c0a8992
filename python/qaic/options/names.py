"""Spelling of option names.

An option has several spellings: ``aic_num_cores`` in Python, ``aic-num-cores`` in a YAML file, and
``-aic-num-cores`` on a command line. This module converts all spellings to one key, and suggests names for
misspelled options.
"""

from collections.abc import Iterable

from qaic.support.text import format_value, nearest_name

#: Prefixes that reverse the meaning of a name.
_NEGATIONS = ("un", "no_", "no", "non_", "not_", "disable_", "dont_", "in", "dis")


def normalize(key: str) -> str:
    """Convert any spelling of an option name to its lookup key.

    `key` is the name as the user wrote it, with hyphens, underscores, spaces, any case, and leading dashes.
    Returns the name in lower case, with words joined by ``_``, and without leading dashes.
    """
    return key.strip().lstrip("-").replace("-", "_").replace(" ", "_").lower()


def nearest(key: str, names: Iterable[str]) -> str | None:
    """Return the name that is most similar to ``key``; None if no name is similar.

    `names` may have any spelling; a name that negates ``key`` is never similar.
    """
    wanted = normalize(key)
    by_key = {normalize(name): name for name in names}
    # A suggestion must not be the opposite of the name.
    candidates = [name for name in by_key if not _are_opposite(wanted, name)]
    found = nearest_name(wanted, candidates)
    return by_key[found] if found else None


def _are_opposite(first: str, second: str) -> bool:
    shorter, longer = sorted((first, second), key=len)
    negated = any(longer == prefix + shorter for prefix in _NEGATIONS)
    enabled = {name.removeprefix("enable_") for name in (first, second) if name.startswith("enable_")}
    disabled = {name.removeprefix("disable_") for name in (first, second) if name.startswith("disable_")}
    return negated or bool(enabled & disabled)


def unknown_keys(given: Iterable[object], known: Iterable[str]) -> list[str]:
    """Return a warning for each unknown key of a user's file, with the nearest known one.

    `given` are the keys of an object in the file, and `known` the valid keys.
    """
    meant = list(known)
    texts = []
    for key in given:
        if key not in meant:
            near = nearest(str(key), meant)
            hint = "" if near is None else f"; did you mean {near}?"
            texts.append(f"the key {format_value(key)} is not known and is ignored{hint}")
    return texts


def in_style_of(name: str, like: str) -> str:
    """Write a canonical name in the style of another spelling, so that it can replace that spelling.

    `name` is a canonical name with underscores; `like` is a spelling with the leading dashes and the word
    separator to use.
    """
    dashes = like[: len(like) - len(like.lstrip("-"))]
    hyphenated = bool(dashes) or ("-" in like and "_" not in like)
    return dashes + (name.replace("_", "-") if hyphenated else name)
