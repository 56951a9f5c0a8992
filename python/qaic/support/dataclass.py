"""Dataclasses whose ``__init__`` is generated at its first use.

`dataclasses` compiles up to seven methods for each class at its import, although most processes create
instances of few classes. This was a third of the time from a new process to the first answer.
"""

import dataclasses
from dataclasses import MISSING, Field, field, fields, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass", "field", "fields", "replace"]


def _dataclass(declared: Any = None, /, **options: bool) -> Any:
    return partial(_declare, **options) if declared is None else _declare(declared)


def _declare(declared: Any, *, eq: bool = True, frozen: bool = False, kw_only: bool = False) -> Any:
    own = dict(vars(declared))
    # This only collects the fields.
    dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(declared)
    members: dict[str, object] = {"__init__": _Init(declared), "__repr__": _repr}
    if eq:
        compared = (one.name for one in fields(declared) if one.compare)
        # The class comes first, because `attrgetter` needs a name.
        members |= {"__key__": attrgetter("__class__", *compared), "__eq__": _eq}
        members["__hash__"] = _hash if frozen else None
    if frozen:
        members |= {"__setattr__": _refuse, "__delattr__": _refuse}
    for name, member in members.items():
        # A class with its own `__eq__` has the `__hash__` None.
        if own.get(name) is None:
            setattr(declared, name, member)
    return declared


class _Init:
    """Placeholder for ``__init__`` of a class."""

    def __init__(self, declared: Any) -> None:
        self._declared = declared

    def __get__(self, instance: object, owner: type) -> Any:
        held = [one for one in fields(self._declared) if one.init or one.default_factory is not MISSING]
        parameters = [one for one in held if one.init and not one.kw_only]
        keywords = [one for one in held if one.init and one.kw_only]
        names = ["self", *(one.name for one in parameters)]
        if keywords:
            names += ["*", *(one.name for one in keywords)]
        if self._declared.__setattr__ is _refuse:
            lines = [f"self.__dict__.update({{{', '.join(f'{one.name!r}: {_value(one)}' for one in held)}}})"]
        else:
            lines = [f"self.{one.name} = {_value(one)}" for one in held] or ["pass"]
        if hasattr(self._declared, "__post_init__"):
            lines.append("self.__post_init__()")
        source = f"def __init__({', '.join(names)}):\n " + "\n ".join(lines)
        scope = {f"_make_{one.name}": one.default_factory for one in held} | {"_missing": MISSING}
        exec(source, scope)  # noqa: S102  # all of the source is names of fields
        method: Any = scope["__init__"]
        method.__defaults__ = tuple(one.default for one in parameters if _has_default(one))
        method.__kwdefaults__ = {one.name: one.default for one in keywords if _has_default(one)}
        method.__annotations__ = {one.name: one.type for one in parameters + keywords}
        method.__qualname__ = f"{self._declared.__qualname__}.__init__"
        self._declared.__init__ = method
        return method.__get__(instance, owner)


def _has_default(one: "Field[Any]") -> bool:
    return one.default is not MISSING or one.default_factory is not MISSING


def _value(one: "Field[Any]") -> str:
    """Return the source of the value of a field."""
    if one.default_factory is MISSING:
        return one.name
    return f"_make_{one.name}()" + (f" if {one.name} is _missing else {one.name}" if one.init else "")


def _repr(self: Any) -> str:
    shown = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({shown})"


def _eq(self: Any, other: Any) -> Any:
    return self.__key__(self) == self.__key__(other) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(self.__key__(self))


def _refuse(_: object, name: str, _value: object = None) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    dataclass = _dataclass
