"""Dimensions that are arithmetic expressions of symbols: ``4*height``, ``past + seq``, ``(length + 1)//2``.

Exporters that trace with symbols write such text; older exporters invented a name. The text is integer
arithmetic with ``+``, ``-``, ``*``, ``//``, ``%``, parentheses, ``Min`` and ``Max``. Plus and minus have
spaces around them, because a name may contain a hyphen.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

#: longer texts, and numbers with more digits, are names
_LONGEST: Final = 200
_DIGITS: Final = 18

#: largest size that a model file can hold
_LARGEST: Final = 2**62

_TOKEN: Final = re.compile(
    rf"(?P<number>[0-9]{{1,{_DIGITS}}})(?![\w.])|(?P<name>[A-Za-z_][\w.]*)"
    r"|(?<=[\w.)]) [+-] |(?<![\w.)])-| ?(?://|[*%]) ?|[()]|, ?(?!\))"
)

#: a number, a symbol, or an operator with its operands
_Tree = int | str | tuple[Callable[..., int], tuple["_Tree", ...]]

_OPERATORS: Final[Mapping[type[ast.operator], Callable[..., int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., int]]] = {"Min": min, "Max": max}


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


def solve(text: str, sizes: Mapping[str, int]) -> dict[str, int] | None:
    """Compute the size of the only unknown symbol of an expression, whose own size is in `sizes`.

    Returns None unless there is one such symbol, and sums and products of it that have a solution.
    """
    tree = _parsed(text)
    unknown = _names(tree) - sizes.keys()
    if len(unknown) != 1 or not _is_polynomial(tree):
        return None
    (symbol,) = unknown
    first, second = (_value(tree, {**sizes, symbol: size}) for size in (1, 2))
    if first == second:
        return None
    found = 1 + (sizes[text] - first) // (second - first)
    if found < 1 or _value(tree, {**sizes, symbol: found}) != sizes[text]:
        return None
    return {symbol: found}


def _is_polynomial(tree: _Tree) -> bool:
    if not isinstance(tree, tuple):
        return True
    is_exact = tree[0] in {operator.add, operator.sub, operator.mul}
    return is_exact and all(_is_polynomial(operand) for operand in tree[1])


def _names(tree: _Tree) -> frozenset[str]:
    if isinstance(tree, tuple):
        return frozenset().union(*(_names(operand) for operand in tree[1]))
    return frozenset({tree} if isinstance(tree, str) else ())


def _value(tree: _Tree, sizes: Mapping[str, int]) -> int:
    if isinstance(tree, tuple):
        # The functions take one operand too, which `min` and `max` would read as a list.
        operands = [_value(operand, sizes) for operand in tree[1]]
        return tree[0](*operands) if len(operands) > 1 else operands[0]
    return sizes[tree] if isinstance(tree, str) else tree


@lru_cache(maxsize=1024)
def _parsed(text: str) -> _Tree:
    """Parse a dimension; a text that is not an expression is a symbol."""
    # Python does not accept all symbols and numbers, so letters and plain digits replace them.
    symbols: list[str] = []
    source = ""
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at) if len(text) <= _LONGEST else None
        if token is None:
            return text
        at = token.end()
        if token["name"] is not None and (token["name"] not in _FUNCTIONS or text[at : at + 1] != "("):
            symbols.append(token["name"])
            source += f"s{len(symbols) - 1}"
        else:
            source += token[0] if token["number"] is None else str(int(token["number"]))
    try:
        tree = _tree(ast.parse(source.lstrip(), mode="eval").body, symbols)
    except SyntaxError:
        return text
    # A number alone cannot be a symbol with a size, but earlier versions gave dimensions such names.
    return text if isinstance(tree, int) else tree


def _tree(node: ast.expr, symbols: list[str]) -> _Tree:
    """Convert a part of an expression. Raises SyntaxError if dimensions do not have such parts."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name) if name not in _FUNCTIONS:
            return symbols[int(name[1:])]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return operator.sub, (0, _tree(operand, symbols))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)], (_tree(left, symbols), _tree(right, symbols))
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as operands) if name in _FUNCTIONS:
            return _FUNCTIONS[name], tuple(_tree(operand, symbols) for operand in operands)
    raise SyntaxError
