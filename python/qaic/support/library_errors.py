"""Translates exceptions that onnx, numpy and other libraries raise for damaged input."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Never

from qaic.errors import QaicError


@contextlib.contextmanager
def library_errors(refuse: Callable[[str], Exception], *, among_ours: bool = False) -> Iterator[None]:
    """Raise one error for all exceptions of a library that cannot read its input.

    Headers of arrays are Python expressions and archives have damaged members, so the exceptions are of many
    types. Errors of the system and of this package pass through.

    `refuse` creates the error from the first line of the library's message. With `among_ours` the block also
    runs code of this package, whose exceptions are defects and pass through.
    """
    try:
        yield
    except QaicError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise
        _raise(refuse, error)
    except Exception as error:
        if among_ours and not _is_of_library(error):
            raise
        _raise(refuse, error)


def _raise(refuse: Callable[[str], Exception], error: Exception) -> Never:
    raise refuse((str(error) or type(error).__name__).split("\n", 1)[0]) from error


def _is_of_library(error: Exception) -> bool:
    """Return True if the innermost function is not in this package, or the recursion is too deep."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    module = "qaic" if frame is None else str(frame.tb_frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] != "qaic" or isinstance(error, MemoryError | RecursionError)
