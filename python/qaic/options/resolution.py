"""Resolves keyword arguments and an options file to typed options.

The steps are: identify options, convert values, merge by precedence, and check the rules for combinations.
Each step collects all errors before it raises an exception, and no step changes anything.
"""

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from qaic.errors import OptionConflictError, OptionError, UnknownOptionError
from qaic.options.codecs.scalars import FilePath, Json, ValueMismatchError, collecting, remark
from qaic.options.files.node_precision import PRECISION_KEYS
from qaic.options.names import in_style_of
from qaic.options.raw_option import OptionSource, Origin, RawOption
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

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ResolvedOptions:
    """The resolved options of a session or a compilation."""

    #: Typed values, one attribute per option.
    session: SessionOptions
    compile: CompileOptions
    runtime: RuntimeOptions
    run_step: RunStepOptions
    #: JSON form of the given compile options that can change the container, by canonical name; part of the
    #: container and of the cache key.
    set_compile: dict[str, Json]
    #: Origin of each given option, by canonical name.
    origins: Mapping[str, Origin]
    #: Typed values of the given options, by canonical name; paths for files.
    as_given: Mapping[str, object]
    #: Options that are not in the table, passed on to the vendor's compiler (``allow_unknown_options``).
    unknown: tuple[RawOption, ...]
    #: Logged warnings.
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Given:
    """A given option of the table, with its raw value, typed value or content of a file."""

    spec: OptionSpec
    value: object
    origin: Origin
    base: Path | None = None


def resolve(
    kwargs: Mapping[str, object],
    *,
    options_path: str | os.PathLike[str] | None,
    model_is_container: bool,
    flags: Sequence[RawOption] = (),
) -> ResolvedOptions:
    """Resolve options; keyword arguments and flags override the options file, and the file the defaults.

    Warnings are logged to ``qaic.options``: unknown keys of the file, options that only the command line
    tools use, compile options that have no effect for a compiled container, and violated rules that are not
    errors.

    `kwargs` are options in any spelling, where None means not given; `flags` are the result of
    `qaic.options.argv.read_argv`; `options_path` is a YAML file. With `model_is_container`, compile options
    are ignored.

    Raises OSError if the options file cannot be read, UnknownOptionError if a keyword argument or flag (with
    ``strict_options``, also a key of the file) is not an option, OptionConflictError if an option is given
    twice or options contradict each other, and OptionError if a value or the options file is wrong.
    """
    given = [
        RawOption(Origin(OptionSource.KEYWORD, key), value)
        for key, value in kwargs.items()
        if value is not None
    ]
    given += flags
    chosen = _options_path(given, options_path)
    in_file: list[RawOption] = []
    if chosen is not None:
        from qaic.options.files.options_file import read_options_file

        in_file = read_options_file(FilePath().parse(chosen.value))
    _refuse_nested(in_file)

    named, unnamed = _named([*given, *in_file])
    ignored: list[_Given] = []
    if model_is_container:
        ignored = [item for item in named if item.spec.stage is Stage.COMPILE]
        named = [item for item in named if item.spec.stage is not Stage.COMPILE]
    for_tools = [item for item in named if _is_for_tools(item)]
    named = [item for item in named if not _is_for_tools(item)]
    forwarded: list[RawOption] = []
    if _forwards_unknown(named):
        forwarded, unnamed = unnamed, []
    # A file may contain options for other tools, but keyword arguments are for this call. One option of the
    # tools, `json_input_file`, is also a keyword argument.
    refused = [item for item in for_tools if not (item.spec.keyword or _is_in_file(item))]
    _refuse_unusable([item for item in unnamed if not _is_in_file(item)], refused)

    with collecting() as remarks:
        as_given = _merge(_typed(named))
        merged = _loaded(as_given)
    if chosen is not None:
        merged[_OPTIONS_PATH.name] = chosen
    values = {name: item.value for name, item in merged.items()}
    unknown = list(filter(_is_in_file, unnamed))
    if values.get("strict_options"):
        _refuse_unusable(unknown, list(filter(_is_in_file, for_tools)))

    warnings = [
        *(f"ignored: {_unknown_text(item.origin.spelling, item.origin)}" for item in unknown),
        *_ignored("options that only the command line tools use are ignored", for_tools),
        *_ignored("the model is already compiled; compile options are ignored", ignored),
        *remarks,
    ]
    origins = {name: item.origin for name, item in merged.items()}
    if "quantization_schema" in values:
        # This option sets two options, and rules find contradictions.
        both = ("quantization_schema_activations", "quantization_schema_constants")
        complete = {**dict.fromkeys(both, values["quantization_schema"]), **values}
    else:
        complete = values
    if origins:
        warnings += _warnings_of_rules(complete, origins, model_is_container=model_is_container)
    for text in warnings:
        _LOG.warning("%s", escape_lines(text))
    set_compile = set_options(values)
    _refuse_bytes(set_compile, origins)
    return ResolvedOptions(
        session=_made(SessionOptions, complete),
        compile=_made(CompileOptions, complete),
        runtime=_made(RuntimeOptions, complete),
        run_step=_made(RunStepOptions, complete),
        set_compile=set_compile,
        origins=origins,
        as_given={name: item.value for name, item in as_given.items()},
        unknown=tuple(forwarded),
        warnings=tuple(warnings),
    )


def parse_updates(changes: Mapping[str, object]) -> dict[str, object]:
    """Convert changes of `RuntimeOptions`; returns them by canonical name, for `dataclasses.replace`.

    `changes` contains names of `RuntimeOptions.backend_options` in any spelling; None means no change. Raises
    OptionError if a name is unknown or cannot be changed after construction, or a value is wrong.
    """
    named: list[_Given] = []
    wrong: list[str] = []
    for key, value in changes.items():
        found = find(key)
        if found is not None and found.updatable:
            if value is not None:
                named.append(_Given(found, value, Origin(OptionSource.KEYWORD, key)))
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


def _options_path(keywords: Sequence[RawOption], argument: str | os.PathLike[str] | None) -> _Given | None:
    """Find the options file, which a caller may also have passed as an option in another spelling."""
    named = [
        _Given(_OPTIONS_PATH, item.value, item.origin) for item in keywords if find(item.key) is _OPTIONS_PATH
    ]
    if argument is not None:
        named.append(_Given(_OPTIONS_PATH, argument, Origin(OptionSource.KEYWORD, _OPTIONS_PATH.name)))
    return _merge(_typed(named)).get(_OPTIONS_PATH.name)


def _refuse_nested(in_file: Sequence[RawOption]) -> None:
    for item in in_file:
        if item.value is not None and find(item.key) is _OPTIONS_PATH:
            raise OptionError(
                f"{item.origin}: an options file cannot name another options file",
                code="option.nested_file",
                context={"options": [_OPTIONS_PATH.name]},
            )


def _named(items: Sequence[RawOption]) -> tuple[list[_Given], list[RawOption]]:
    """Split given options into options of the table, without the options file, and other options."""
    named: list[_Given] = []
    unnamed: list[RawOption] = []
    for item in items:
        found = find(item.key)
        if found is None:
            unnamed.append(item)
        elif found is not _OPTIONS_PATH and (item.value is not None or found.codec.takes_none):
            named.append(_Given(found, item.value, item.origin, item.base))
    return named, unnamed


def _is_for_tools(item: _Given) -> bool:
    """Return True if an option of the command line tools was given elsewhere."""
    return item.spec.stage is Stage.CLI and item.origin.source is not OptionSource.ARGV


def _is_in_file(item: RawOption | _Given) -> bool:
    return item.origin.source is OptionSource.YAML


def _forwards_unknown(named: Sequence[_Given]) -> bool:
    wanted = [item for item in named if item.spec.name in {"allow_unknown_options", "target"}]
    values = {name: item.value for name, item in _merge(_typed(wanted)).items()}
    return bool(values.get("allow_unknown_options")) and values.get("target") == "card"


def _typed(named: Iterable[_Given]) -> list[_Given]:
    return _converted(named, _parsed)


def _parsed(item: _Given) -> object:
    codec = item.spec.codec
    if codec.python_only and item.origin.source is not OptionSource.KEYWORD:
        raise codec.mismatch(item.value)
    value = codec.parse(item.value)
    return value if item.base is None else codec.rebase(value, item.base)


def _loaded(merged: Mapping[str, _Given]) -> dict[str, _Given]:
    """Read the files of values that take precedence."""
    loaded = _converted(merged.values(), lambda item: item.spec.codec.load(item.value))
    return {item.spec.name: item for item in loaded}


def _converted(items: Iterable[_Given], convert: Callable[[_Given], object]) -> list[_Given]:
    """Convert values. Raises one OptionError for all wrong values."""
    converted: list[_Given] = []
    wrong: list[tuple[_Given, ValueMismatchError]] = []
    for item in items:
        try:
            with collecting() as texts:
                value = convert(item)
            remark(texts, str(item.origin))
            converted.append(_Given(item.spec, value, item.origin))
        except ValueMismatchError as error:
            wrong.append((item, error))
    if wrong:
        raise OptionError(
            _listed([f"{item.origin}: {error}" for item, error in wrong], "options have wrong values"),
            code="option.invalid_value",
            context={
                "options": [item.spec.name for item, _ in wrong],
                "expected": [error.expected for _, error in wrong],
                "found": [error.found for _, error in wrong],
            },
        )
    return converted


def _merge(typed: Sequence[_Given]) -> dict[str, _Given]:
    """Keep one value per option; a keyword argument overrides the file, and two in one place are a conflict.

    Two spellings of a keyword argument are accepted if their values are equal; in a file, they are refused.
    """
    merged: dict[str, _Given] = {}
    conflicts: list[tuple[str, str]] = []
    for in_file in (True, False):
        here: dict[str, _Given] = {}
        for item in typed:
            if _is_in_file(item) is not in_file:
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


def _made(options: type[T], values: Mapping[str, Any]) -> T:
    """Create an object of an options class; the codec of each field has created its value."""
    names = values.keys() & vars(options)["__dataclass_fields__"].keys()
    return options(**{name: values[name] for name in names})


def _warnings_of_rules(
    values: Mapping[str, object], origins: Mapping[str, Origin], *, model_is_container: bool
) -> list[str]:
    """Check the rules for combinations; returns the violated ones that are not errors."""
    # The import takes as long as the rest of the resolution, and defaults violate no rule.
    from qaic.options.conflicts import broken
    from qaic.options.rules import RuleView, Severity

    view = RuleView({**_DEFAULTS, **values}, _DEFAULTS, origins, model_is_container=model_is_container)
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
    return [text for _, text in broken(view, Severity.WARNING)]


def _refuse_bytes(set_compile: Mapping[str, Json], origins: Mapping[str, Origin]) -> None:
    """Refuse values that a container cannot record: bytes of a command line that are not UTF-8."""
    for name, value in set_compile.items():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise OptionError(
                f"{origins[name]}: expected text in UTF-8, found {format_value(error.object)}",
                code="option.invalid_value",
                context={"options": [name]},
            ) from None


def _refuse_unusable(unknown: Sequence[RawOption], for_tools: Sequence[_Given]) -> None:
    if not (unknown or for_tools):
        return
    origins = [*(item.origin for item in unknown), *(item.origin for item in for_tools)]
    texts = [_unknown_text(origin.spelling, origin) for origin in origins[: len(unknown)]]
    texts += [f"{origin} is an option of the command line tools only" for origin in origins[len(unknown) :]]
    raise UnknownOptionError(
        _listed(texts, "options cannot be used"),
        code="option.unknown" if unknown else "option.only_for_tools",
        context={
            "options": [origin.spelling for origin in origins],
            "nearest": [nearest_name(item.origin.spelling) for item in unknown],
        },
    )


def _ignored(why: str, items: Sequence[_Given]) -> list[str]:
    names = dict.fromkeys(item.origin.spelling for item in items if item.value is not None)
    return [f"{why}: {', '.join(names)}"] if names else []


def _unknown_text(key: str, origin: Origin | None = None) -> str:
    if origin is not None and origin.source is OptionSource.ARGV:
        dashes = key[: len(key) - len(key.lstrip("-"))]
        near = " or ".join(f"{dashes}{flag}" for flag in flags_meant(key)) or None
    else:
        near = " or ".join(in_style_of(name, key) for name in names_meant(key)) or None
        if origin is not None and key in PRECISION_KEYS:
            near = f"node_precision_info_file={origin.file}"
    hint = "" if near is None else f"; did you mean {near}?"
    return f"unknown option {key if origin is None else origin}{hint}"


def _listed(texts: Sequence[str], what: str) -> str:
    """Join errors; several errors are counted and listed."""
    return texts[0] if len(texts) == 1 else f"{len(texts)} {what}:" + "".join(f"\n  {text}" for text in texts)
