"""Rules for combinations of options, and two common kinds of rules.

Rules check the converted and merged values. All rules are checked before any work starts, so that one error
can list all problems. `conflicts` contains the rules.
"""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from qaic.options.raw_option import OptionSource, Origin
from qaic.options.table import find


class Severity(enum.Enum):
    """Consequence of a violated rule."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class RuleView:
    """The facts that a rule may use."""

    #: Value of every option by canonical name, including defaults.
    values: Mapping[str, Any]
    #: Defaults.
    defaults: Mapping[str, object]
    #: Origins of the given options.
    origins: Mapping[str, Origin]
    #: True if the model is a compiled container.
    model_is_container: bool

    def is_set(self, name: str) -> bool:
        """Return True if an option was given with another value than its default."""
        if name not in self.origins:
            return False
        value, default = self.values[name], self.defaults[name]
        # Samples may be an array, whose comparison is element by element.
        return value is not None if default is None else value != default

    def given_names(self, names: Iterable[str]) -> list[str]:
        """Return the spellings of the options with another value than their default."""
        return [self.format(name) for name in names if self.is_set(name)]

    def is_asked(self, name: str) -> bool:
        """Return True if an option was given, even with its default, except a switch that is off."""
        return name in self.origins and self.values[name] is not False and self.values[name] is not None

    def asked_names(self, names: Iterable[str]) -> list[str]:
        """Return the spellings of the given options whose effect is requested."""
        return [self.format(name) for name in names if self.is_asked(name)]

    def format(self, name: str) -> str:
        """Return the name of an option in the spelling that the user used, or would use."""
        origin = self.origins.get(name)
        if origin is not None:
            return str(origin)
        spec = find(name)
        on_command_line = any(given.source is OptionSource.ARGV for given in self.origins.values())
        if on_command_line and spec is not None and spec.flag is not None:
            return f"-{spec.flag.text}"
        return name


Check: TypeAlias = Callable[[RuleView], str | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule."""

    #: Stable name, the last part of the error's code.
    name: str
    #: Canonical names of the options of the rule.
    options: tuple[str, ...]
    #: Consequence of a violated rule.
    severity: Severity
    #: One sentence for the reference.
    summary: str
    #: Returns the problem and its fix, or None.
    check: Check


def rule(*options: str, summary: str, severity: Severity = Severity.WARNING) -> Callable[[Check], Rule]:
    """Create a rule from a check; its name is the name of the function without the leading underscore."""

    def decorate(check: Check) -> Rule:
        return Rule(check.__name__.removeprefix("_"), options, severity, summary, check)

    return decorate


def exclusive(name: str, *options: str, because: str = "keep one of them") -> Rule:
    """Create the rule that at most one of several options, by canonical names, is requested.

    `because` is the end of the message: the reason or the fix; ``{0}`` is the first option in the user's
    spelling.
    """

    def check(view: RuleView) -> str | None:
        # A switch that was turned off explicitly has no effect here.
        asked = view.given_names(option for option in options if view.values[option] is not False)
        if len(asked) < 2:
            return None
        return f"{format_names(asked)} exclude each other: {because.format(*map(view.format, options))}"

    listed = format_names([f"`{option}`" for option in options])
    return Rule(name, options, Severity.ERROR, f"{listed} exclude each other.", check)


def needs(
    name: str, options: tuple[str, ...], needed: tuple[str, ...], severity: Severity = Severity.WARNING
) -> Rule:
    """Create the rule that `options` need one of the options `needed`, all by canonical names.

    `severity` selects a warning that they have no effect, or an error if callers rely on them.
    """

    def check(view: RuleView) -> str | None:
        asked = (view.given_names if severity is Severity.ERROR else view.asked_names)(options)
        if not asked or any(view.is_set(option) for option in needed):
            return None
        one_of = format_names([view.format(option) for option in needed], "or")
        if severity is Severity.ERROR:
            return f"{format_names(asked)} {'needs' if len(asked) == 1 else 'need'} {one_of}"
        have = "has" if len(asked) == 1 else "have"
        return f"{format_names(asked)} {have} no effect without {one_of}"

    need = "needs" if len(options) == 1 else "need"
    users, sources = ([f"`{option}`" for option in listed] for listed in (options, needed))
    summary = f"{format_names(users)} {need} {format_names(sources, 'or')}."
    return Rule(name, (*options, *needed), severity, summary, check)


def format_names(names: Sequence[str], word: str = "and") -> str:
    """Join names for a sentence."""
    return f" {word} ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
