"""The description of one option in the option table.

A row is a field of one of the classes in `rows`, declared with `option`; everything else - parsing,
precedence, errors, command lines, JSON keys, the reference page - is derived from it.
"""

import enum
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from qaic.options.codecs.scalars import Bool, Codec, Float, Int
from qaic.options.names import normalize

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
D = TypeVar("D")


class Stage(enum.Enum):
    """When an option is used."""

    SESSION = "session"
    COMPILE = "compile"
    RUNTIME = "runtime"
    CLI = "command line"


class Effect(enum.Enum):
    """Effect of an option on the CPU device; the letters are those of the reference."""

    BEHAVIOR = "E"
    TIMING = "T"
    FILE = "F"
    DIAGNOSTIC = "D"
    VALIDATED = "V"
    RECORDED = "R"


class FlagForm(enum.Enum):
    """Form of a value on a command line."""

    SWITCH = "switch"  # -flag, -flag=false
    VALUE = "value"  # -flag=value
    OPTIONAL = "optional"  # -flag, -flag=value
    REPEAT = "repeat"  # -flag=one -flag=two
    COUNT = "count"  # -f, -ff, -fff
    ACTION = "action"  # -flag, and nothing else is done


@dataclass(frozen=True, slots=True)
class Flag:
    """Command line flag of an option."""

    #: Flag without leading dashes, in its documented case; empty for the option's name with hyphens.
    text: str = ""
    #: Form of the value; the default of a row whose codec is `Bool` is a switch.
    form: FlagForm = FlagForm.VALUE
    #: Separator of the values of a list in one flag.
    separator: str = ","
    #: Other texts of the same flag.
    others: tuple[str, ...] = ()
    #: Text that `openqaic` prints; empty for `text`, None if `openqaic` has no such flag.
    of_openqaic: str | None = ""
    #: True if the vendor's tools have no such flag, although they have another way to the same thing.
    ours: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """Every spelling, the preferred one first."""
        return (self.text, *self.others)


class JsonForm(enum.Enum):
    """Form of a value in the two configuration classes."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    TEXT = "text"
    NAMES = "list of text"
    IDS = "list of int"
    SPACED = "text with spaces"  # a list in one text
    TARGET = "hardware"  # the name of the compilation target


@dataclass(frozen=True, slots=True)
class AicField:
    """Field of ``AicCompilerConfig`` or ``AicRuntimeConfig``."""

    #: Documented default of the class. It is never a request: only fields that were set count.
    default: bool | int | float | str | tuple[str, ...]
    #: Field and constructor argument; by default the row's name without ``aic_``.
    name: str = ""
    #: Key in the flat back-end extension dictionary, in its exact case; by default stage and name.
    json_key: str = ""
    #: Type of the field and of the JSON value; by default that of the row's codec, or a text.
    form: JsonForm = JsonForm.TEXT
    #: Values that the class takes, if it lists them.
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionSpec:
    """A row of the option table."""

    #: Canonical name: keyword argument and YAML key.
    name: str
    #: When the option is used.
    stage: Stage
    #: Type of the value.
    codec: Codec[Any]
    #: Value when not given; None where there is none.
    default: object
    #: One sentence for the reference.
    summary: str
    #: Effect on the CPU device.
    effect: Effect
    #: Lookup keys of other names (misspellings, field and JSON names).
    aliases: tuple[str, ...] = ()
    #: Command line flag, None when there is none.
    flag: Flag | None = None
    #: True if the value can change the bytes of the container.
    in_container: bool = True
    #: True if it may change after construction.
    updatable: bool = False
    #: True if the vendor's tools do not have the option.
    ours: bool = False
    #: Needs the vendor's compiler: refused for the target ``cpu``.
    sdk_only: bool = False
    #: True if it is a keyword argument and a YAML key too, not only a flag.
    keyword: bool = True
    #: Field of the configuration classes.
    aic: AicField | None = None
    #: Heading of the group of options it belongs to.
    section: str

    @property
    def keys(self) -> frozenset[str]:
        """Every lookup key of the option."""
        keys = {self.name, *self.aliases}
        # One-letter flags are a matter of the command line: as a keyword or YAML key they would be a riddle.
        if self.flag is not None:
            keys.update(normalize(text) for text in self.flag.texts if len(text) > 1)
        if self.aic is not None:
            keys.update((normalize(self.aic.name), normalize(self.aic.json_key)))
        return frozenset(keys)


_NAMED: Final = Flag()
_JSON_FORMS: Final[dict[type, JsonForm]] = {Bool: JsonForm.BOOL, Int: JsonForm.INT, Float: JsonForm.FLOAT}


def rows_of(declared: "type[DataclassInstance]", stage: Stage) -> tuple[OptionSpec, ...]:
    """Return the rows that are fields of a class, in their order, with their defaults filled in."""
    sections = {
        name: vars(base)["SECTION"]
        for base in declared.__mro__
        if "SECTION" in vars(base)
        for name in vars(base)["__annotations__"]
    }
    return tuple(_row(row.name, stage, sections[row.name], **row.metadata) for row in fields(declared))


def _row(
    name: str,
    stage: Stage,
    section: str,
    *,
    codec: Codec[Any],
    effect: Effect,
    flag: Flag | None,
    aic: AicField | None = None,
    in_container: bool = True,
    **more: Any,
) -> OptionSpec:
    if flag is _NAMED and stage is Stage.RUNTIME:
        # No tool of this package takes these options.
        flag = None
    if flag is not None:
        is_switch = isinstance(codec, Bool) and flag.form is FlagForm.VALUE
        text = flag.text or name.replace("_", "-")
        flag = replace(flag, text=text, form=FlagForm.SWITCH if is_switch else flag.form)
    if aic is not None:
        form = _JSON_FORMS.get(type(codec), JsonForm.TEXT) if aic.form is JsonForm.TEXT else aic.form
        field_name = aic.name or name.removeprefix("aic_")
        key = aic.json_key or f"{'runtime' if stage is Stage.RUNTIME else 'compiler'}_{field_name}"
        aic = replace(aic, name=field_name, json_key=key, form=form)
    return OptionSpec(
        name=name,
        stage=stage,
        section=section,
        codec=codec,
        effect=effect,
        flag=flag,
        aic=aic,
        in_container=in_container and stage is Stage.COMPILE and effect is not Effect.FILE,
        **more,
    )


def option(
    codec: Codec[T],
    default: D,
    summary: str,
    effect: Effect = Effect.BEHAVIOR,
    *,
    flag: Flag | None = _NAMED,
    **more: Any,
) -> T | D:
    """Declare a row of the option table as a dataclass field; ``more`` are other fields of `OptionSpec`.

    Without ``flag``, the flag is the name with hyphens; run options then have no flag. None means no flag.
    Without ``effect``, the option changes results, stored data or accepted input. Options of the compiler are
    part of the container, except for those that write a file, and those with ``in_container=False``.

    The return type is that of the field's value, so that the type checker compares the annotation of the
    field with the codec and the default, as `dataclasses.field` does.
    """
    row = {"codec": codec, "default": default, "summary": summary, "effect": effect, "flag": flag}
    metadata = {**more, **row}
    empty: Any = default
    # A mutable default is copied for every instance.
    return (
        field(default_factory=empty.copy, metadata=metadata)
        if isinstance(default, dict)
        else field(default=default, metadata=metadata)
    )


def switch(summary: str, effect: Effect = Effect.BEHAVIOR, *, default: bool = False, **more: Any) -> bool:
    """Declare a row that is true or false; ``more`` are parameters of `option`."""
    return option(Bool(), default, summary, effect, **more)


def tool_option(
    codec: Codec[T],
    default: D,
    summary: str,
    *others: str,
    effect: Effect = Effect.BEHAVIOR,
    form: FlagForm = FlagForm.VALUE,
    ours: bool = False,
) -> T | D:
    """Declare a row that is a flag of a tool and no keyword; ``others`` are further texts of the flag."""
    flag = Flag("", form, others=others, ours=ours)
    return option(codec, default, summary, effect, flag=flag, keyword=False)
