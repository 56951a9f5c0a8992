"""Signatures that list every option, for the completion of notebooks and for ``inspect.signature``."""

import inspect
from collections.abc import Callable
from typing import Literal, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class _WithOptions:
    """Creates the signature of a class on demand, because a hundred options take longer than the class."""

    def __init__(self, keywords: str) -> None:
        self._keywords = keywords

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        from qaic.options import keywords

        own = list(inspect.signature(vars(owner)["__init__"]).parameters.values())
        return inspect.Signature(_expanded(own[1:], getattr(keywords, self._keywords)))


def with_options(keywords: Literal["SessionKeywords", "CompileKeywords"]) -> Callable[[type[T]], type[T]]:
    """Add the options that a class accepts as ``**options`` to its signature.

    `keywords` is the name of the ``TypedDict`` of the options in ``qaic.options.keywords``, which is not
    imported for the class.
    """

    def decorate(decorated: type[T]) -> type[T]:
        decorated.__signature__ = _WithOptions(keywords)  # type: ignore[attr-defined]
        return decorated

    return decorate


def function_with_options(keywords: type) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Add the options that a function accepts as ``**options``, a ``TypedDict``, to its signature."""

    def decorate(decorated: Callable[P, T]) -> Callable[P, T]:
        # `inspect` does not support lazy signatures of functions.
        own = inspect.signature(decorated)
        expanded = own.replace(parameters=_expanded(list(own.parameters.values()), keywords))
        decorated.__signature__ = expanded  # type: ignore[attr-defined]
        return decorated

    return decorate


def _expanded(parameters: list[inspect.Parameter], keywords: type) -> list[inspect.Parameter]:
    """Replace ``**options`` with the options."""
    named = [one for one in parameters if one.kind is not inspect.Parameter.VAR_KEYWORD]
    known = {one.name for one in named}
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in keywords.__annotations__.items()
        if name not in known
    ]
    return [*named, *options]
