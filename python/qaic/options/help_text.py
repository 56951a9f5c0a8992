"""Help texts of the command line tools: flags with their meaning, by section."""

import textwrap
from collections.abc import Collection

from qaic.options.argv import with_flags
from qaic.options.codecs.scalars import INT32_MAX, Float, Int
from qaic.options.spec import Effect, Flag, FlagForm, OptionSpec, Stage
from qaic.options.table import SPECS

_WIDTH = 100

_INDENT = " " * 8


def render_help(stages: Collection[Stage]) -> str:
    """Return the flags of some stages, under the headings of their sections.

    Options without a flag are omitted.
    """
    specs = [spec for spec in SPECS if spec.flag is not None and spec.stage in stages]
    parts = []
    for section in dict.fromkeys(spec.section for spec in specs):
        rows = [line for spec in specs if spec.section == section for line in _row(spec)]
        parts.append("\n".join([f"{section.replace('`', '')}:", *rows]))
    return "\n\n".join(parts) + "\n"


def _row(spec: OptionSpec) -> list[str]:
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
