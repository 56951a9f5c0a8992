"""The text form of a target SoC, such as ``chipset:SM8550;dsp_arch:v73;soc_model:43``.

There is no data base of SoCs here: the content of the text is known, and nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_KEYS = ("chipset", "dsp_arch", "soc_model", "cores")
_ARCHITECTURE = re.compile(r"v[0-9]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class SocTarget:
    """A text's description of one SoC; fields are ``None`` where it has none.

    Parameters
    ----------
    chipset
        Market name.
    dsp_arch
        Generation of the processor, as ``v73``.
    soc_model
        Number of the model in the tools.
    cores
        Number of its cores.
    """

    chipset: str | None = None
    dsp_arch: str | None = None
    soc_model: int | None = None
    cores: int | None = None


def parse_soc_details(text: str) -> tuple[SocTarget, ...]:
    """Parse the text form.

    Parameters
    ----------
    text
        ``key:value`` pairs joined by ``;``. A ``|`` begins a further SoC; a value without a key after it
        belongs to the key before it, as in ``soc_model:43|57``.

    Raises
    ------
    ValueError
        The text has another form; the message names the part.
    """
    targets: list[SocTarget] = []
    key = ""
    for alternative in text.split("|"):
        given: dict[str, str] = {}
        for part in alternative.split(";"):
            name, colon, value = part.partition(":")
            if not colon:
                name, value = key, part
            key = name.strip()
            if key not in _KEYS or not value.strip():
                message = (
                    f"found {part.strip()!r}, expected KEY:VALUE with one of the keys {', '.join(_KEYS)}"
                )
                raise ValueError(message)
            if key in given:
                message = f"{key} is given twice for one SoC; a | begins the next"
                raise ValueError(message)
            given[key] = value.strip()
        targets.append(_target(given))
    return tuple(targets)


def _target(given: dict[str, str]) -> SocTarget:
    architecture = given.get("dsp_arch")
    if architecture is not None and not _ARCHITECTURE.fullmatch(architecture):
        message = f"found dsp_arch {architecture!r}, expected a text such as 'v73'"
        raise ValueError(message)
    return SocTarget(given.get("chipset"), architecture, _number(given, "soc_model"), _number(given, "cores"))


def _number(given: dict[str, str], key: str) -> int | None:
    text = given.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        message = f"found {key} {text!r}, expected a whole number"
        raise ValueError(message)
    return int(text)
