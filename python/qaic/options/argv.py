"""Options as command line arguments, and back, and as help.

The documented form has one dash, and ``=`` before the value. Two dashes, and the value as the next argument,
are also accepted. Both directions use the option table, so the reader accepts all that the writer writes.
"""

import ast
import re
import shlex
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Final

from qaic.errors import OptionError, QaicError
from qaic.options.codecs.scalars import INT32_MAX, Float, Int, ListOf, ValueMismatchError
from qaic.options.codecs.structures import ModelInputs
from qaic.options.names import in_style_of
from qaic.options.raw_option import OptionSource, Origin, RawOption
from qaic.options.resolution import ResolvedOptions
from qaic.options.spec import Effect, Flag, FlagForm, OptionSpec, Stage
from qaic.options.table import SPECS, find

_BY_TEXT = {text: spec for spec in SPECS if spec.flag is not None for text in spec.flag.texts}

#: A value, not a flag: ``-mos -1``.
_NUMBER = re.compile(r"-[0-9.]")

_WORDS = frozenset({"true", "false"})


def read_argv(argv: Sequence[str]) -> list[RawOption]:
    """Read command line arguments.

    An option of the table has its flag and other names. Other arguments that begin with a dash are also
    returned, and `qaic.options.resolve` refuses them or passes them on. `argv` does not contain the name of
    the tool.

    Returns one entry for each option, with the combined value of its flags: the texts of a flag that may be
    repeated, the joined texts of a list, or the number of occurrences. Raises one OptionError for all
    arguments that are not flags, and for all missing and superfluous values.
    """
    wrong: list[str] = []
    found: list[RawOption] = []
    for spec, spelling, value in _arguments(argv, wrong):
        name = None if spec is None else spec.name
        earlier = next((item for item in found if name is not None and item.name == name), None)
        given = RawOption(Origin(OptionSource.ARGV, spelling), value, name=name)
        together = None if earlier is None else _together(spec, earlier.value, value)
        if earlier is None or together is None:
            found.append(given)
        else:
            found[found.index(earlier)] = RawOption(earlier.origin, together, name=name)
    if wrong:
        raise OptionError(
            wrong[0] if len(wrong) == 1 else "\n  ".join([f"{len(wrong)} arguments are wrong:", *wrong]),
            code="option.command_line",
            context={"problems": wrong},
        )
    return [
        RawOption(item.origin, [item.value], name=item.name)
        if isinstance(item.value, str) and _form(item) is FlagForm.REPEAT
        else item
        for item in found
    ]


def to_argv(
    resolved: ResolvedOptions,
    *,
    sdk: bool = False,
    files: Mapping[str, Path] | None = None,
    dashes: str = "-",
) -> list[str]:
    """Write the given options as arguments, ``-flag=value`` and ``-flag``.

    With `sdk`, the arguments are for the vendor's compiler: without options that only this package has,
    options of sessions and runs, and switches that are off by default. Options that are not in the table
    (``allow_unknown_options``) come last. `files` maps canonical names of options that were given as content
    to files. Two `dashes` select flags of `openqaic`. `without_flag` lists options that have no flag.

    Raises OptionError if a value cannot be written as a flag.
    """
    argv: list[str] = []
    wrong: list[tuple[str, ValueMismatchError]] = []
    for spec in SPECS:
        value = (files or {}).get(spec.name, resolved.as_given.get(spec.name))
        if spec.flag is None or value is None or (sdk and (spec.flag.ours or not _is_for_sdk(spec))):
            continue
        try:
            argv += _written(spec, spec.flag, value, dashes, sdk=sdk)
        except ValueMismatchError as error:
            wrong.append((spec.name, error))
    if wrong:
        texts = [f"{resolved.origins.get(name, name)}: {error}" for name, error in wrong]
        raise OptionError(
            "; ".join(texts), code="option.no_flag_text", context={"options": [name for name, _ in wrong]}
        )
    for item in resolved.unknown:
        argv += (_dashed(text, dashes) for text in _forwarded(item))
    return argv


def without_flag(resolved: ResolvedOptions) -> tuple[str, ...]:
    """Return the names of the given compile options without a flag of the vendor's compiler.

    Options that only this package has are omitted, because they are not for that compiler.
    """
    return tuple(
        spec.name
        for spec in SPECS
        if spec.stage is Stage.COMPILE
        and not spec.ours
        and (spec.flag is None or spec.flag.ours)
        and spec.name in resolved.as_given
    )


def _arguments(
    argv: Sequence[str], wrong: list[str]
) -> Iterator[tuple[OptionSpec | None, str, str | int | bool]]:
    """Yield option, spelling and raw value of each argument; append errors to a list."""
    arguments = list(argv)
    place = 0
    while place < len(arguments):
        argument = arguments[place]
        place += 1
        following = arguments[place] if place < len(arguments) else None
        spelling, assigned, value = argument.partition("=")
        text = spelling.removeprefix("-").removeprefix("-")
        if not argument.startswith("-") or not text or _NUMBER.match(argument):
            hint = (
                f"; did you mean {arguments[place - 2]}={argument}?"
                if argument in _WORDS and place > 1
                else ""
            )
            wrong.append(f"unexpected argument {argument}: options begin with a dash{hint}")
            continue
        counted = _counted(text)
        spec = _BY_TEXT.get(text) or counted or (find(text) if len(text) > 1 else None)
        flag = None if spec is None else spec.flag
        form = None if flag is None else flag.form
        if assigned:
            if form is FlagForm.ACTION or (counted is not None and len(text) > 1):
                wrong.append(f"{spelling} has no value, {value!r} was given")
            else:
                yield spec, spelling, value
        elif form is FlagForm.COUNT:
            yield spec, spelling, len(text) if counted is not None else 1
        elif form in {FlagForm.SWITCH, FlagForm.OPTIONAL, FlagForm.ACTION}:
            yield spec, spelling, True
        elif following is not None and (not following.startswith("-") or _NUMBER.match(following)):
            place += 1
            yield spec, spelling, following
        elif form is None:
            yield spec, spelling, True
        else:
            wrong.append(f"{spelling} needs a value: {spelling}=VALUE")


def _counted(text: str) -> OptionSpec | None:
    """Return the option whose letter the text repeats."""
    spec = _BY_TEXT.get(text[0]) if text == text[0] * len(text) else None
    return spec if spec is not None and spec.flag is not None and spec.flag.form is FlagForm.COUNT else None


def _form(item: RawOption) -> FlagForm | None:
    spec = None if item.name is None else find(item.name)
    return None if spec is None or spec.flag is None else spec.flag.form


def _together(spec: OptionSpec | None, first: object, second: object) -> object:
    """Return the combined value of two flags of one option; None if they contradict or repeat each other."""
    if spec is None or spec.flag is None:
        return None
    if spec.flag.form is FlagForm.REPEAT:
        return [*(first if isinstance(first, list) else [first]), second]
    if spec.flag.form is FlagForm.COUNT and isinstance(first, int) and isinstance(second, int):
        return first + second
    if isinstance(spec.codec, ListOf) and isinstance(first, str) and isinstance(second, str):
        return f"{first},{second}"
    return None


def _is_for_sdk(spec: OptionSpec) -> bool:
    return not spec.ours and (spec.stage is Stage.COMPILE or spec.name == "model_path")


def _flag_of(spec: OptionSpec, dashes: str) -> str | None:
    """Return the flag of an option in the tools whose options begin with `dashes`; None if they have none."""
    if spec.flag is None:
        return None
    if dashes != "--":
        return f"-{spec.flag.text}"
    if spec.stage is not Stage.COMPILE or spec.flag.of_openqaic is None:
        return None
    return _dashed(f"-{spec.flag.of_openqaic or spec.flag.text}", dashes)


def _written(spec: OptionSpec, flag: Flag, value: object, dashes: str, *, sdk: bool) -> list[str]:
    start = _flag_of(spec, dashes)
    if start is None:
        return []
    form = flag.form
    if form is FlagForm.COUNT:
        return [f"-{start[-1] * value}"] if isinstance(value, int) and value > 0 else []
    if form in {FlagForm.SWITCH, FlagForm.ACTION}:
        if value:
            return [start]
        # The vendor's tool is known to accept a value of a switch only where a value is needed.
        return [] if form is FlagForm.ACTION or (sdk and spec.default is False) else [f"{start}=false"]
    codec = spec.codec
    if dashes == "--" and isinstance(codec, ModelInputs):
        texts = codec.to_shape_texts(value)
    else:
        texts = codec.to_texts(value)
    if form is FlagForm.OPTIONAL:
        return [start if texts == codec.to_texts(codec.parse(True)) else f"{start}={texts[0]}"]  # noqa: FBT003
    if form is FlagForm.REPEAT:
        return [f"{start}={text}" for text in texts]
    return [f"{start}={flag.separator.join(texts)}"]


def _forwarded(item: RawOption) -> list[str]:
    """Write an option that is not in the table by the general rule for names and values."""
    spelling = item.origin.spelling
    flag = spelling if spelling.startswith("-") else in_style_of(spelling, "-")
    value = item.value
    if value is None or (isinstance(value, str | bool) and str(value).lower() == "false"):
        return []
    if isinstance(value, str | bool) and str(value).lower() == "true":
        return [flag]
    if isinstance(value, dict):
        return [f"{flag}={name},{held}" for name, held in value.items()]
    return [f"{flag}={','.join(map(str, value))}"] if isinstance(value, list | tuple) else [f"{flag}={value}"]


#: keywords that are not English words: keywords of several words, and this keyword
_ONE_WORD: Final = frozenset({"batchsize", "mos", "ols"})
_QUOTED: Final = r"""(?<!\w)'(?:[^'\\\n]|\\.)*'(?!\w)|"(?:[^"\\\n]|\\.)*"|`[^`\n]*`"""
#: name of an option in an options file
_IN_FILE: Final = r" \([^()\n]*, line \d+\)"
#: keys of the context of errors whose values name options
_OF_OPTIONS: Final = frozenset({"option", "options", "problems"})
_TRUTH: Final = re.compile(r"=(True|False)\b")
_CLOSING: Final = {"{": "}", "[": "]", "(": ")"}


def with_flags(
    text: str, dashes: str, own: Mapping[str, str] | None = None, names: Collection[str] = ()
) -> str:
    """Return a message with flags in place of keywords; flags of several letters begin with `dashes`.

    `own` maps further keywords to flags of the tool. ``keyword=value`` in `text`, with a value in the syntax
    of Python, becomes flags with this value. `names`, and text in quotes, are names of a user and do not
    change.
    """
    by_name, own = _by_name(), own or {}
    parts = []
    place = 0
    for found in _pattern(tuple(own), frozenset(names)).finditer(text):
        if found.start() < place or (name := found.group("name")) is None:
            continue
        if name in own:
            parts += [text[place : found.start()], own[name]]
            place = found.end()
            continue
        spec = by_name[name]
        value, end = _value(text, found.end())
        flags = _flags(spec, value, dashes) if end > found.end() else None
        if end == found.end():
            flags = _flag_of(spec, dashes)
        if flags is None:
            continue
        parts += [text[place : found.start()], flags]
        place = end
    return "".join([*parts, text[place:]])


def names_in(error: QaicError) -> list[str]:
    """Return the names and files of a user in the context of an error, which its message may contain."""
    found = (value for key, value in error.context.items() if key not in _OF_OPTIONS)
    return [str(value) for value in found if isinstance(value, str | PathLike)]


@cache
def _by_name() -> dict[str, OptionSpec]:
    named = (spec for spec in SPECS if "_" in spec.name or spec.name in _ONE_WORD)
    return {spec.name: spec for spec in named if spec.flag is not None}


@cache
def _pattern(own: tuple[str, ...], names: frozenset[str]) -> re.Pattern[str]:
    keywords = "|".join(sorted({*_by_name(), *own}, key=len, reverse=True))
    kept = [re.escape(name) for name in sorted(names, key=len, reverse=True) if re.search(keywords, name)]
    users = "".join(rf"(?<!\w){name}(?!\w)|" for name in kept)
    return re.compile(rf"{users}{_QUOTED}|(?<![\w./\\=-])(?P<name>{keywords})(?![\w/\\-]|\.\w|{_IN_FILE})")


def _value(text: str, place: int) -> tuple[object, int]:
    """Read ``={...}``, ``=[...]`` or a truth value after a keyword; returns the value and its end."""
    if found := _TRUTH.match(text, place):
        return found[1] == "True", found.end()
    closing = _CLOSING.get(text[place + 1 : place + 2]) if text[place : place + 1] == "=" else None
    end = place
    while closing is not None and (end := text.find(closing, end + 1)) >= 0:
        try:
            return ast.literal_eval(text[place + 1 : end + 1]), end + 1
        except (ValueError, SyntaxError):
            continue
    return None, place


def _flags(spec: OptionSpec, value: object, dashes: str) -> str | None:
    try:
        arguments = _written(spec, spec.flag, spec.codec.parse(value), dashes, sdk=False) if spec.flag else []
    except ValueMismatchError:
        return None
    return shlex.join(arguments) or None


def _dashed(flag: str, dashes: str) -> str:
    word = flag.lstrip("-")
    return f"{dashes}{word}" if len(word.partition("=")[0]) > 1 else flag


#: columns of help
_WIDTH: Final = 100
_INDENT: Final = " " * 8


def render_help(stages: Collection[Stage]) -> str:
    """Return the flags of some stages, under the headings of their sections.

    Options without a flag are omitted.
    """
    specs = [spec for spec in SPECS if spec.flag is not None and spec.stage in stages]
    parts = []
    for section in dict.fromkeys(spec.section for spec in specs):
        rows = [line for spec in specs if spec.section == section for line in _help_lines(spec)]
        parts.append("\n".join([f"{section.replace('`', '')}:", *rows]))
    return "\n\n".join(parts) + "\n"


def _help_lines(spec: OptionSpec) -> list[str]:
    assert spec.flag is not None  # noqa: S101  # the caller has chosen those
    notes = []
    if isinstance(spec.codec, Int | Float) and spec.codec.ge is not None:
        bounded = spec.codec.le is not None and spec.codec.le < INT32_MAX
        notes.append(f"{spec.codec.ge} to {spec.codec.le}" if bounded else f"at least {spec.codec.ge}")
    if spec.default not in (None, False, True, (), {}) and spec.flag.form is not FlagForm.COUNT:
        notes.append(f"default {spec.default}")
    if spec.effect is Effect.RECORDED:
        notes.append("no effect on the cpu target")
    if spec.ours or spec.flag.ours:
        notes.append("not in the vendor's tools")
    text = with_flags(spec.summary.replace("`", ""), "-") + (f" [{'; '.join(notes)}]" if notes else "")
    lines = textwrap.wrap(text, _WIDTH - len(_INDENT), break_on_hyphens=False)
    return [f"  {flag_text(spec, spec.flag)}", *(_INDENT + line for line in lines)]


def flag_text(spec: OptionSpec, flag: Flag) -> str:
    """Return a flag with the form of its value."""
    start = f"-{flag.text}"
    if flag.form is FlagForm.ACTION:
        return ", ".join(f"-{text}" for text in flag.texts)
    if flag.form is FlagForm.COUNT:
        return ", ".join(f"-{flag.text * count}" for count in (1, 2, 3))
    if flag.form is FlagForm.SWITCH:
        return start if spec.default is False else f"{start}[=true|false]"
    value = spec.codec.placeholder
    if flag.form is FlagForm.OPTIONAL:
        return f"{start}[={value}]"
    return f"{start}={value.removesuffix(',...')} ..." if flag.form is FlagForm.REPEAT else f"{start}={value}"
