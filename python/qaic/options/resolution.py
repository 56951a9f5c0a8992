"""Resolves keyword arguments and an options file to typed options.

Order of work: name every option, type every value, merge by precedence, then check the rules between
options. Each step collects all it finds wrong before it raises, and nothing has been done when it does.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from qaic.errors import OptionConflictError, OptionError, UnknownOptionError
from qaic.options.codecs.scalars import FilePath, Json, ValueMismatchError, collecting, remark
from qaic.options.conflicts import broken
from qaic.options.files.options_file import read_options_file
from qaic.options.names import in_style_of
from qaic.options.raw_option import OptionSource, Origin, RawOption
from qaic.options.rules import RuleView, Severity
from qaic.options.spec import OptionSpec, Stage
from qaic.options.table import (
    SPECS,
    CompileOptions,
    RunStepOptions,
    RuntimeOptions,
    SessionOptions,
    find,
    flags_meant,
    names_meant,
    nearest_name,
    set_options,
)
from qaic.support.text import escape_lines, format_value

_OPTIONS_PATH = next(spec for spec in SPECS if spec.name == "options_path")

_DEFAULTS = {spec.name: spec.default for spec in SPECS}

_LOG = logging.getLogger("qaic.options")


@dataclass(frozen=True, kw_only=True)
class ResolvedOptions:
    """The resolved options of a session or a compilation."""

    #: Typed values, one attribute per option.
    session: SessionOptions
    compile: CompileOptions
    runtime: RuntimeOptions
    run_step: RunStepOptions
    #: JSON form of the compile options that were given and can change the container, by canonical name; part
    #: of the container and of the cache key.
    set_compile: dict[str, Json]
    #: Origin of each option that was given, by canonical name.
    origins: Mapping[str, Origin]
    #: Typed values of the options that were given, by canonical name; a file is its path.
    as_given: Mapping[str, object]
    #: Options that are not in the table, passed on to the vendor's compiler (``allow_unknown_options``).
    unknown: tuple[RawOption, ...]
    #: Warnings that were logged.
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Named:
    """An option that was given and has an effect."""

    spec: OptionSpec
    given: RawOption


@dataclass(frozen=True, slots=True)
class _TypedPath:
    value: Path
    origin: Origin


@dataclass(frozen=True, slots=True)
class _Typed:
    spec: OptionSpec
    value: object
    origin: Origin


def resolve(
    kwargs: Mapping[str, object],
    *,
    options_path: str | os.PathLike[str] | None,
    model_is_container: bool,
    flags: Sequence[RawOption] = (),
) -> ResolvedOptions:
    """Resolve options: keyword arguments and flags win over the options file, the file over the defaults.

    Warnings go to the logger ``qaic.options``: unknown keys of the file, options that only the command line
    tools use, compile options that a compiled container makes meaningless, and broken rules that are not
    errors.

    Parameters
    ----------
    kwargs
        Options by any spelling of their names. A value of None counts as not given.
    options_path
        YAML options file, or None.
    model_is_container
        Whether the model is a compiled container: compile options are then ignored.
    flags
        What `qaic.options.argv.read_argv` has read.

    Raises
    ------
    OSError
        The options file cannot be read.
    qaic.errors.UnknownOptionError
        A keyword argument or flag (with ``strict_options`` also a key of the file) is not an option. Also a
        ``TypeError``.
    qaic.errors.OptionConflictError
        An option was given twice, or options contradict each other.
    qaic.errors.OptionError
        A value is wrong, or the options file is.
    """
    given = [
        RawOption(Origin(OptionSource.KEYWORD, key), value)
        for key, value in kwargs.items()
        if value is not None
    ]
    given += flags
    chosen = _options_path(given, options_path)
    in_file = [] if chosen is None else read_options_file(chosen.value)
    _refuse_nested(in_file)

    named, unnamed = _named([*given, *in_file])
    named = [item for item in named if item.spec is not _OPTIONS_PATH]
    ignored: list[RawOption] = []
    if model_is_container:
        ignored = [item.given for item in named if item.spec.stage is Stage.COMPILE]
        named = [item for item in named if item.spec.stage is not Stage.COMPILE]
    for_tools = [item.given for item in named if _is_for_tools(item)]
    named = [item for item in named if not _is_for_tools(item)]
    forwarded: list[RawOption] = []
    if _forwards_unknown(named):
        forwarded, unnamed = unnamed, []
    _refuse_unusable([item for item in [*unnamed, *for_tools] if _is_refused(item)])

    with collecting() as remarks:
        as_given = _merge(_typed(named))
        merged = _loaded(as_given)
    if chosen is not None:
        merged[_OPTIONS_PATH.name] = _Typed(_OPTIONS_PATH, chosen.value, chosen.origin)
    values = {name: item.value for name, item in merged.items()}
    left_over = [item for item in [*unnamed, *for_tools] if item.origin.source is OptionSource.YAML]
    if values.get("strict_options"):
        _refuse_unusable(left_over)

    warnings = [
        *_unknown_warnings(left_over),
        *_tool_warnings([item for item in for_tools if not _is_refused(item)]),
        *_container_warnings(ignored),
        *remarks,
    ]
    origins = {name: item.origin for name, item in merged.items()}
    resolved = _build(values)
    view = RuleView(
        {spec.name: _attribute(resolved, spec) for spec in SPECS},
        _DEFAULTS,
        origins,
        model_is_container=model_is_container,
    )
    _refuse_broken(view)
    warnings += [text for _, text in broken(view, Severity.WARNING)]
    for text in warnings:
        _LOG.warning("%s", escape_lines(text))
    session, compile_, runtime, run_step = resolved
    set_compile = set_options(values)
    _refuse_bytes(set_compile, origins)
    return ResolvedOptions(
        session=session,
        compile=compile_,
        runtime=runtime,
        run_step=run_step,
        set_compile=set_compile,
        origins=origins,
        as_given={name: item.value for name, item in as_given.items()},
        unknown=tuple(forwarded),
        warnings=tuple(warnings),
    )


def parse_updates(changes: Mapping[str, object]) -> dict[str, object]:
    """Type changes of `RuntimeOptions` and return them by canonical name, for `dataclasses.replace`.

    `changes` has any spelling of the names that `RuntimeOptions.backend_options` returns; None changes
    nothing. Raises OptionError if a name is unknown or cannot be changed after construction, or a value is
    wrong.
    """
    named: list[_Named] = []
    wrong: list[str] = []
    for key, value in changes.items():
        found = find(key)
        if found is not None and found.updatable:
            if value is not None:
                named.append(_Named(found, RawOption(Origin(OptionSource.KEYWORD, key), value)))
        elif found is None:
            wrong.append(_unknown_text(key))
        else:
            wrong.append(f"{key} cannot be changed after construction")
    if wrong:
        valid = [spec.name for spec in SPECS if spec.updatable]
        raise OptionError(
            f"{'; '.join(wrong)}. Options that can be changed: {', '.join(valid)}",
            code="option.not_updatable",
            context={"options": list(changes), "valid": valid},
        )
    return {name: item.value for name, item in _loaded(_merge(_typed(named))).items()}


def _options_path(
    keywords: Sequence[RawOption], argument: str | os.PathLike[str] | None
) -> _TypedPath | None:
    """Find the options file, which a caller may also have put among the options under another spelling."""
    named = [_Named(_OPTIONS_PATH, item) for item in keywords if find(item.key) is _OPTIONS_PATH]
    if argument is not None:
        origin = Origin(OptionSource.KEYWORD, _OPTIONS_PATH.name)
        named.append(_Named(_OPTIONS_PATH, RawOption(origin, argument)))
    found = _merge(_typed(named)).get(_OPTIONS_PATH.name)
    return None if found is None else _TypedPath(FilePath().parse(found.value), found.origin)


def _refuse_nested(in_file: Sequence[RawOption]) -> None:
    for item in in_file:
        if item.value is not None and find(item.key) is _OPTIONS_PATH:
            raise OptionError(
                f"{item.origin}: an options file cannot name another options file",
                code="option.nested_file",
                context={"options": [_OPTIONS_PATH.name]},
            )


def _named(items: Sequence[RawOption]) -> tuple[list[_Named], list[RawOption]]:
    """Split what was given into options of the table and the rest."""
    named: list[_Named] = []
    unnamed: list[RawOption] = []
    for item in items:
        found = find(item.key)
        if found is None:
            unnamed.append(item)
        elif item.value is not None or found.codec.takes_none:
            named.append(_Named(found, item))
    return named, unnamed


def _is_for_tools(item: _Named) -> bool:
    """Return True if an option of the command line tools was given elsewhere."""
    return item.spec.stage is Stage.CLI and item.given.origin.source is not OptionSource.ARGV


def _is_refused(item: RawOption) -> bool:
    """Return True if an option that cannot be used here is always an error.

    A file may carry what is for other tools; a keyword argument is written for this call. ``json_input_file``
    is the one option of the tools that has a name as a keyword argument too.
    """
    found = find(item.key)
    return item.origin.source is not OptionSource.YAML and (found is None or not found.keyword)


def _forwards_unknown(named: Sequence[_Named]) -> bool:
    wanted = [item for item in named if item.spec.name in {"allow_unknown_options", "target"}]
    values = {name: item.value for name, item in _merge(_typed(wanted)).items()}
    return bool(values.get("allow_unknown_options")) and values.get("target") == "card"


def _typed(named: Sequence[_Named]) -> list[_Typed]:
    typed: list[_Typed] = []
    wrong: list[tuple[OptionSpec, str, ValueMismatchError]] = []
    for item in named:
        try:
            if item.spec.codec.python_only and item.given.origin.source is not OptionSource.KEYWORD:
                raise item.spec.codec.mismatch(item.given.value)
            with collecting() as texts:
                value = item.spec.codec.parse(item.given.value)
            remark(texts, str(item.given.origin))
        except ValueMismatchError as error:
            wrong.append((item.spec, str(item.given.origin), error))
            continue
        if item.given.base is not None:
            value = item.spec.codec.rebase(value, item.given.base)
        typed.append(_Typed(item.spec, value, item.given.origin))
    _refuse_values(wrong)
    return typed


def _loaded(merged: Mapping[str, _Typed]) -> dict[str, _Typed]:
    """Read the files that stand for values; only those of the values that count."""
    loaded: dict[str, _Typed] = {}
    wrong: list[tuple[OptionSpec, str, ValueMismatchError]] = []
    for name, item in merged.items():
        try:
            with collecting() as texts:
                loaded[name] = replace(item, value=item.spec.codec.load(item.value))
            remark(texts, str(item.origin))
        except ValueMismatchError as error:
            wrong.append((item.spec, str(item.origin), error))
    _refuse_values(wrong)
    return loaded


def _refuse_values(wrong: Sequence[tuple[OptionSpec, str, ValueMismatchError]]) -> None:
    if wrong:
        raise OptionError(
            _listed([f"{place}: {error}" for _, place, error in wrong], "options have wrong values"),
            code="option.invalid_value",
            context={
                "options": [spec.name for spec, _, _ in wrong],
                "expected": [error.expected for _, _, error in wrong],
                "found": [error.found for _, _, error in wrong],
            },
        )


def _merge(typed: Sequence[_Typed]) -> dict[str, _Typed]:
    """Keep one value per option: a keyword argument wins over the file; two in one place are a conflict.

    Two spellings of one keyword argument are accepted while they agree; in a file
    they are not.
    """
    merged: dict[str, _Typed] = {}
    conflicts: list[tuple[str, str]] = []
    for in_file in (True, False):
        here: dict[str, _Typed] = {}
        for item in typed:
            if (item.origin.source is OptionSource.YAML) is not in_file:
                continue
            name = item.spec.name
            first = here.setdefault(name, item)
            if first is not item and (in_file or first.value != item.value):
                same = f"{first.origin} and {item.origin} are the same option"
                if first.origin == item.origin:
                    same = f"{first.origin} has two values"
                conflicts.append((name, f"{same}: give it once"))
        merged.update(here)
    if conflicts:
        raise OptionConflictError(
            _listed([text for _, text in conflicts], "options were given twice"),
            code="option.duplicate",
            context={"options": [name for name, _ in conflicts]},
        )
    return merged


_Resolved: TypeAlias = "tuple[SessionOptions, CompileOptions, RuntimeOptions, RunStepOptions]"


def _build(values: Mapping[str, object]) -> _Resolved:
    complete = dict(values)
    schema = values.get("quantization_schema")
    if schema is not None:
        # One option means two; the rules find contradictions.
        for name in ("quantization_schema_activations", "quantization_schema_constants"):
            complete.setdefault(name, schema)

    def of(stage: Stage) -> dict[str, object]:
        return {
            spec.name: complete[spec.name] for spec in SPECS if spec.stage is stage and spec.name in complete
        }

    # Every value was made by the codec of its field, so the types hold; the checker cannot see through the
    # table.
    return (
        SessionOptions(**of(Stage.SESSION)),  # type: ignore[arg-type]
        CompileOptions(**of(Stage.COMPILE)),  # type: ignore[arg-type]
        RuntimeOptions(**of(Stage.RUNTIME)),  # type: ignore[arg-type]
        RunStepOptions(**of(Stage.CLI)),  # type: ignore[arg-type]
    )


def _attribute(resolved: _Resolved, spec: OptionSpec) -> object:
    place = (Stage.SESSION, Stage.COMPILE, Stage.RUNTIME, Stage.CLI).index(spec.stage)
    return getattr(resolved[place], spec.name)


def _refuse_broken(view: RuleView) -> None:
    found = broken(view, Severity.ERROR)
    if found:
        raise OptionConflictError(
            _listed([text for _, text in found], "rules between options are violated"),
            code=f"option.{found[0][0].name}" if len(found) == 1 else "option.conflict",
            context={
                "rules": [rule.name for rule, _ in found],
                "options": [name for rule, _ in found for name in rule.options],
            },
        )


def _refuse_bytes(set_compile: Mapping[str, Json], origins: Mapping[str, Origin]) -> None:
    """Refuse values that a container cannot record: bytes of a command line that are no UTF-8."""
    for name, value in set_compile.items():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise OptionError(
                f"{origins[name]}: expected text in UTF-8, found {format_value(error.object)}",
                code="option.invalid_value",
                context={"options": [name]},
            ) from None


def _refuse_unusable(items: Sequence[RawOption]) -> None:
    if not items:
        return
    unknown = [item for item in items if find(item.key) is None]
    texts = [
        _unknown_text(item.origin.spelling, item.origin)
        if item in unknown
        else f"{item.origin} is an option of the command line tools only"
        for item in items
    ]
    raise UnknownOptionError(
        _listed(texts, "options cannot be used"),
        code="option.unknown" if unknown else "option.only_for_tools",
        context={
            "options": [item.origin.spelling for item in items],
            "nearest": [nearest_name(item.origin.spelling) for item in unknown],
        },
    )


def _unknown_warnings(items: Sequence[RawOption]) -> list[str]:
    return [
        f"ignored: {_unknown_text(item.origin.spelling, item.origin)}"
        for item in items
        if find(item.key) is None
    ]


def _tool_warnings(items: Sequence[RawOption]) -> list[str]:
    names = dict.fromkeys(item.origin.spelling for item in items)
    return [f"options that only the command line tools use are ignored: {', '.join(names)}"] if names else []


def _container_warnings(items: Sequence[RawOption]) -> list[str]:
    names = dict.fromkeys(item.origin.spelling for item in items if item.value is not None)
    if not names:
        return []
    return [f"the model is already compiled; compile options are ignored: {', '.join(names)}"]


def _unknown_text(key: str, origin: Origin | None = None) -> str:
    if origin is not None and origin.source is OptionSource.ARGV:
        dashes = key[: len(key) - len(key.lstrip("-"))]
        near = " or ".join(f"{dashes}{flag}" for flag in flags_meant(key)) or None
    else:
        near = " or ".join(in_style_of(name, key) for name in names_meant(key)) or None
    hint = "" if near is None else f"; did you mean {near}?"
    return f"unknown option {key if origin is None else origin}{hint}"


def _listed(texts: Sequence[str], what: str) -> str:
    """Join findings: several are counted and listed."""
    if len(texts) == 1:
        return texts[0]
    return f"{len(texts)} {what}:" + "".join(f"\n  {text}" for text in texts)
