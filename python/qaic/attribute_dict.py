"""Dictionaries with a fixed set of keys, which are also attributes."""

from typing import Any, TypeVar

V = TypeVar("V")


class AttributeDict(dict[str, V]):
    """A dictionary whose keys are also attributes; a subclass declares them.

    It compares, prints as JSON and iterates like a plain dictionary.
    """

    def __getattr__(self, name: str) -> V:
        """Return the value of a key."""
        try:
            return self[name]
        except KeyError:
            known = ", ".join(self)
            raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {known}") from None

    def __dir__(self) -> list[str]:
        """List the keys first, for completion."""
        return [*self, *super().__dir__()]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.items())})"

    def _repr_html_(self) -> str:
        from qaic.report import Table, columns_of

        rows: list[tuple[Any, ...]] = list(self.items())
        return Table("record", type(self).__name__, columns_of("name | value:float"), rows)._repr_html_()
