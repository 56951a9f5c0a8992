"""Two readers of the text of a profile file: one for the shape it has in practice, one for any YAML.

Neither decides what is right; they hand keys and values to a `ProfileBuilder`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from qaic.compiler.calibration.glow_profile_entries import DECIMAL, MOST_BINS, ProfileBuilder, wrong
from qaic.errors import OptionError

_ITEM: Final = re.compile(r"\s*-\s+([0-9.eE+-]+)\s*", re.ASCII)
_KEY: Final = re.compile(r"(-\s+|\s+)?([A-Za-z]+)", re.ASCII)


class UnusualError(Exception):
    """The text is not in the plain shape; it may still be right."""


def read_plain(text: str, builder: ProfileBuilder) -> None:
    """Read one key per line, the shape in which the tools write these files."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        stripped = line.strip()
        if not stripped or stripped[0] == "#" or stripped in {"---", "...", "[]"}:
            continue
        start, colon, rest = line.partition(":")
        matched = _KEY.fullmatch(start)
        if matched is None or not colon or (rest and rest[0] not in " \t"):
            raise UnusualError
        lead, key, value = matched[1], matched[2], rest.strip()
        at = number
        item: str | list[str]
        if value.startswith("["):
            pieces = [value[1:]]
            while "]" not in pieces[-1]:
                if number >= len(lines):
                    raise UnusualError
                pieces.append(lines[number])
                number += 1
            body = " ".join(pieces).rstrip()
            if body.count("]") != 1 or not body.endswith("]") or "#" in body or "'" in body or "[" in body:
                raise UnusualError
            numbers = body[:-1].strip()
            item = numbers.rstrip(",").split(",") if numbers else []
        elif not value and lead is not None:
            item = []
            while number < len(lines) and (matched := _ITEM.fullmatch(lines[number])):
                item.append(matched[1])
                number += 1
            if not item:
                raise UnusualError
        else:
            item = _plain_scalar(value)
        if lead is None:
            builder.header(key, item, at)
            continue
        if lead[0] == "-":
            builder.entry(at)
        builder.field(key, item, at)


def _plain_scalar(value: str) -> str:
    """Take a scalar that means its own letters, in simple quotes or none."""
    if value[:1] in {"'", '"'}:
        inner = value[1:-1]
        if len(value) < 2 or value[-1] != value[0] or value[0] in inner or "\\" in inner:
            raise UnusualError
        return inner
    if (
        not value
        or (value[0] in "&*!|>{}%@`-?," and not DECIMAL.fullmatch(value))
        or " #" in value
        or ": " in value
    ):
        raise UnusualError
    return value


def read_general(text: str, builder: ProfileBuilder) -> None:
    """Read any YAML of the right structure.

    Events, not values: a tree could be made to unfold without bound by aliases.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _Structure(yaml.parse(text, Loader=loader), builder).read()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = 1 if mark is None else mark.line + 1
        problem = getattr(error, "problem", None) or "no YAML"
        raise wrong(builder.file, line, "text", f"a mistake ({problem})", "three YAML documents") from None
    except RecursionError:
        raise wrong(builder.file, 1, "text", "deep nesting", "three YAML documents") from None


class _Structure:
    """Walks the events of a file and refuses every structure but the one of a profile."""

    def __init__(self, events: Iterator[Any], builder: ProfileBuilder) -> None:
        self._events = events
        self._builder = builder

    def read(self) -> None:
        """Read all documents."""
        import yaml

        for event in self._events:
            if isinstance(event, yaml.MappingStartEvent):
                self._mapping(self._builder.header)
            elif isinstance(event, yaml.SequenceStartEvent):
                self._entries()
            elif isinstance(event, yaml.AliasEvent) or (isinstance(event, yaml.ScalarEvent) and event.value):
                raise self._unexpected(event)

    def _entries(self) -> None:
        import yaml

        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                return
            if not isinstance(event, yaml.MappingStartEvent):
                raise self._unexpected(event)
            self._builder.entry(_line(event))
            self._mapping(self._builder.field)

    def _mapping(self, take: Any) -> None:
        import yaml

        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                return
            if not isinstance(event, yaml.ScalarEvent):
                raise self._unexpected(event)
            value = next(self._events)
            line = _line(event)
            if isinstance(value, yaml.SequenceStartEvent):
                take(event.value, self._scalars(), line)
            elif isinstance(value, yaml.ScalarEvent):
                take(event.value, value.value, line)
            else:
                raise self._unexpected(value)

    def _scalars(self) -> list[str]:
        import yaml

        found: list[str] = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            if not isinstance(event, yaml.ScalarEvent):
                raise self._unexpected(event)
            found.append(event.value)
            if len(found) > MOST_BINS:
                break
        return found

    def _unexpected(self, event: Any) -> OptionError:
        kind = type(event).__name__.removesuffix("Event")
        kind = {"Alias": "an alias", "MappingStart": "a mapping", "SequenceStart": "a list"}.get(
            kind, "a value"
        )
        return wrong(
            self._builder.file,
            _line(event),
            "structure",
            kind,
            "two mappings and a list of mappings, without anchors",
        )


def _line(event: Any) -> int:
    return 1 if event.start_mark is None else int(event.start_mark.line) + 1
