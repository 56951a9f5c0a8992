"""Dimensions that are arithmetic expressions of symbols: ``4*height``, ``past + seq``, ``(length + 1)//2``.

Exporters that trace with symbols write such text; older exporters invented a name. The text is integer
arithmetic with ``+ - *
%``, parentheses, ``Min`` and ``Max``. Plus and minus have spaces around them, because a name may contain a
hyphen.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

#: longer texts, and numbers with more digits, are names
_LONGEST: Final = 200
_DIGITS: Final = 18
_DEEPEST: Final = 20

#: largest size that a model file can hold
_LARGEST: Final = 2**62

_TOKEN: Final = re.compile(
    rf"(?P<number>[0-9]{{1,{_DIGITS}}})(?![\w.])|(?P<name>[A-Za-z_][\w.]*)| (?P<sum>[+-]) |"
    r" ?(?P<product>//|[*%]) ?|(?P<minus>-)|(?P<other>[()])|(?P<comma>,) ?"
)

#: a number, a symbol, or an operator with its operands
_Tree = int | str | tuple[str, tuple["_Tree", ...]]


class _NoExpressionError(Exception):
    """The text is not an expression, so it is a name."""


def symbols_in(text: str) -> frozenset[str]:
    """Return the symbols of a dimension: those of the expression, or the text if it is not an expression."""
    return _names(_parsed(text))


def evaluate(text: str, sizes: Mapping[str, int]) -> int | None:
    """Compute a dimension.

    A size for the whole text has precedence over the expression. Returns None if a symbol has no size, or the
    expression has no value; the result may be negative.
    """
    if text in sizes:
        return sizes[text]
    try:
        size = _value(_parsed(text), sizes)
    except (KeyError, ZeroDivisionError):
        return None
    return size if abs(size) < _LARGEST else None


def _names(tree: _Tree) -> frozenset[str]:
    if isinstance(tree, tuple):
        return frozenset().union(*(_names(operand) for operand in tree[1]))
    return frozenset({tree} if isinstance(tree, str) else ())


_OPERATORS: Final[Mapping[str, Callable[..., int]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "Min": lambda *operands: min(operands),
    "Max": lambda *operands: max(operands),
}


def _value(tree: _Tree, sizes: Mapping[str, int]) -> int:
    if isinstance(tree, tuple):
        return _OPERATORS[tree[0]](*(_value(operand, sizes) for operand in tree[1]))
    return sizes[tree] if isinstance(tree, str) else tree


@lru_cache(maxsize=1024)
def _parsed(text: str) -> _Tree:
    if len(text) > _LONGEST:
        return text
    try:
        tree = _Parser(text).whole()
    except _NoExpressionError:
        return text
    # A number alone cannot be a symbol with a size, but earlier versions gave dimensions such names.
    return text if isinstance(tree, int) else tree


class _Parser:
    """Parses by recursive descent; raises `_NoExpressionError` if the text is not an expression."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        self.depth = 0
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise _NoExpressionError
            self.tokens.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()
        self.tokens.reverse()

    def whole(self) -> _Tree:
        tree = self.sum()
        if self.tokens:
            raise _NoExpressionError
        return tree

    def sum(self) -> _Tree:
        return self.chain("sum", self.product)

    def product(self) -> _Tree:
        return self.chain("product", self.factor)

    def chain(self, kind: str, operand: Callable[[], _Tree]) -> _Tree:
        """Read operands between operators of one kind, which bind to the left."""
        tree = operand()
        while self.tokens and self.tokens[-1][0] == kind:
            operator = self.tokens.pop()[1]
            tree = (operator, (tree, operand()))
        return tree

    def factor(self) -> _Tree:
        kind, text = self.take()
        if kind == "number":
            return int(text)
        if kind == "minus":
            return ("-", (0, self.factor()))
        if kind == "name":
            if text in {"Min", "Max"} and self.tokens and self.tokens[-1][1] == "(":
                self.tokens.pop()
                return (text, self.arguments())
            return text
        if text == "(":
            inner = self.arguments()
            if len(inner) == 1:
                return inner[0]
        raise _NoExpressionError

    def arguments(self) -> tuple[_Tree, ...]:
        """Read the arguments after an opening parenthesis, up to the closing one."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _NoExpressionError
        trees = [self.sum()]
        while (token := self.take()) == ("comma", ","):
            trees.append(self.sum())
        if token != ("other", ")"):
            raise _NoExpressionError
        self.depth -= 1
        return tuple(trees)

    def take(self) -> tuple[str, str]:
        if not self.tokens:
            raise _NoExpressionError
        return self.tokens.pop()
