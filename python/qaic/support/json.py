"""Strict reading and writing of JSON files."""

import json
from collections import Counter
from typing import Any, Final

#: largest number of characters of a key in a message
_LONGEST_SHOWN: Final = 80


def parse_json(data: bytes) -> Any:
    """Return the value of a UTF-8 text, with or without a byte order mark.

    Raises ValueError if the text is not JSON, is nested too deeply, or has an object with a duplicate key, of
    which Python would silently keep the last.
    """
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("values are nested too deeply") from None


def canonical_json(value: object) -> bytes:
    """Serialize with sorted keys and no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        # One pass, because an untrusted text may have millions of keys.
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        shown = twice if len(twice) <= _LONGEST_SHOWN else f"{twice[:_LONGEST_SHOWN]}..."
        raise ValueError(f"the key {shown!r} occurs twice in one object")
    return made
