"""``qaic.CompileOptions``: options of the compiler as one value, to keep, print, compare and use again."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Self, Unpack

from qaic.errors import OptionError
from qaic.options import resolve
from qaic.options.keywords import CompileKeywords
from qaic.options.signature import with_options
from qaic.options.spec import OptionSpec, Stage
from qaic.options.table import CompileOptions as Values
from qaic.options.table import effective_options, find, merge, specs_of


@with_options("CompileKeywords")
class CompileOptions(Mapping[str, object]):
    """Compile options, which the constructor checks.

    The object is a read-only mapping from canonical names to the given values, for :func:`qaic.compile`, or,
    unpacked with ``**``, for :class:`qaic.Session`. Every option is also an attribute, which has the default
    value if the option was not given. Objects with the same options and values are equal.

    Parameters
    ----------
    config
        Mapping from option names, in any spelling, to values.
    **options
        Options, in any spelling; they override ``config``. ``docs/reference/options.md`` lists them.
        ``options_path`` names a YAML file with more options, which ``config`` and ``options`` override.

    Attributes
    ----------
    warnings
        Warnings about the options, a tuple of texts; they were also logged.

    Raises
    ------
    FileNotFoundError
        A file of options does not exist.
    qaic.errors.OptionError
        A value is invalid, or a run-time option was given; the message lists all invalid values. Options that
        exclude each other raise an ``OptionConflictError``, unknown options an ``UnknownOptionError``.

    Examples
    --------
    >>> import qaic
    >>> half = qaic.CompileOptions(convert_to_fp16=True, aic_num_cores=4)
    >>> half
    CompileOptions(convert_to_fp16=True, aic_num_cores=4)
    >>> half.aic_num_cores, half.batchsize
    (4, None)
    >>> half.replace(aic_num_cores=2).difference(half)
    {'aic_num_cores': (2, 4)}
    >>> half == qaic.CompileOptions({"aic-num-cores": "4"}, convert_to_fp16="true")
    True
    >>> qpc = qaic.compile("model.onnx", half)
    """

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        /,
        **options: Unpack[CompileKeywords],
    ) -> None:
        given = merge(config or {}, options)
        resolved = resolve(given, options_path=None, model_is_container=False)
        _refuse_of_running(resolved.as_given)
        self._given = dict(resolved.as_given)
        self._values = resolved.compile
        self.warnings = resolved.warnings

    # --- a mapping of what was given ------------------------------------------------------------------------

    def __getitem__(self, name: str) -> object:
        found = find(name)
        return self._given[name if found is None else found.name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    # --- all options ----------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Return the given value of an option, or its default."""
        found = None if name.startswith("_") else find(name)
        if found is None or found.stage is not Stage.COMPILE:
            raise AttributeError(f"CompileOptions has no option {name!r}")
        return getattr(self._values, found.name)

    def __dir__(self) -> list[str]:
        """Names of all options, for completion."""
        return [*(spec.name for spec in _specs()), *super().__dir__()]

    def replace(self, **changes: Unpack[CompileKeywords]) -> "CompileOptions":
        """Return a copy with changed options; ``None`` removes an option.

        Raises
        ------
        qaic.errors.OptionError
            As for the class.
        """
        changed = {(found.name if (found := find(key)) else key) for key in changes}
        kept = {name: value for name, value in self._given.items() if name not in changed}
        return CompileOptions(merge(kept, changes))

    def difference(self, other: Self) -> dict[str, tuple[object, object]]:
        """Return the options that differ: name -> (value in this object, value in ``other``)."""
        pairs = {
            spec.name: (getattr(self._values, spec.name), getattr(other._values, spec.name))
            for spec in _specs()
        }
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def __eq__(self, other: object) -> bool:
        return self._values == other._values if isinstance(other, CompileOptions) else NotImplemented

    def __hash__(self) -> int:
        return hash(json.dumps(effective_options(self._values), sort_keys=True))

    def __reduce__(self) -> tuple[object, ...]:
        return (CompileOptions, (self._given,))

    # --- for people -----------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"CompileOptions({', '.join(f'{name}={value!r}' for name, value in self._given.items())})"

    def __str__(self) -> str:
        """Return one line for each given option, with its purpose."""
        rows = self._rows()
        width = max((len(f"{name} = {value}") for name, value, _ in rows), default=0)
        lines = [f"{f'{name} = {value}':<{width}}  {text}" for name, value, text in rows]
        return "\n".join(lines) or "defaults of the compiler"

    def _repr_html_(self) -> str:
        from qaic.report import Table, columns_of

        columns, rows = columns_of("option | value | purpose"), self._rows()
        note = None if rows else "defaults of the compiler"
        return Table("options", "Options of the compiler", columns, rows, note)._repr_html_()

    def _rows(self) -> list[tuple[str, str, str]]:
        summaries = {spec.name: spec.summary for spec in _specs()}
        return [(name, repr(value), summaries.get(name, "")) for name, value in self._given.items()]


def _specs() -> tuple[OptionSpec, ...]:
    return tuple(spec for spec in specs_of(Values) if spec.keyword)


def _refuse_of_running(given: Mapping[str, object]) -> None:
    running = [name for name in given if (found := find(name)) and found.stage is Stage.RUNTIME]
    if running:
        raise OptionError(
            f"{', '.join(running)}: found in compile options, but they are run options",
            code="option.of_running",
            context={"options": running},
            hints=("pass them to qaic.Session",),
        )
