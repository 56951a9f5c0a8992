"""The writing rules that a program can check, with advice; CONTRIBUTING.md has the others."""

import re
from typing import NamedTuple

from prose.texts import Kind, Text

_EVERYWHERE: tuple[Kind, ...] = ("doc", "heading", "prose", "message")


class Rule(NamedTuple):
    """A pattern that texts of some kinds must not contain, and the advice for a match."""

    name: str
    pattern: re.Pattern[str]
    advice: str
    kinds: tuple[Kind, ...] = _EVERYWHERE

    def matches(self, text: Text) -> int:
        """Return how often a text breaks the rule."""
        return len(self.pattern.findall(text.text)) if text.kind in self.kinds else 0


RULES = (
    Rule(
        "opening",
        re.compile(r"\A(What|Whether|Where|Who|Of|Tells?|Says?)\b"),
        "a doc comment begins with a verb or a noun: Returns, Number of, The buffer that",
        ("doc",),
    ),
    Rule(
        "heading",
        re.compile(r"\A(\d+\. )?(What|Whether|Where|Which|Who|Whose|Of)\b"),
        "a heading names a task or a thing: Set time limits, Memory ownership",
        ("heading",),
    ),
    Rule("anew", re.compile(r"\banew\b", re.I), "write: again"),
    Rule("beside", re.compile(r"\bbesides?\b", re.I), "write: next to, in addition to, compared with"),
    Rule(
        "fp32",
        re.compile(r"\bfp(16|32)\b", re.I),
        "write: float16, float32; an option's value is code",
        ("doc", "heading", "prose"),
    ),
    Rule("mend", re.compile(r"\bmend(s|ed|ing)?\b", re.I), "write: fix"),
    Rule("take out", re.compile(r"\b(takes?|taken|took|taking) out\b", re.I), "write: remove"),
    Rule(
        "stand",
        re.compile(r"\b(stands?|stood|lies?|lay) (in|on|at|beside|behind|there|above|below|within)\b", re.I),
        "write: is, contains",
    ),
    Rule(
        "say",
        re.compile(r"\b(says?|said|tells?|told)\b", re.I),
        "write: means, states, reports, shows, returns",
    ),
    Rule(
        "participle first",
        re.compile(
            r"(?:\A|[.:] |\n)(Recorded|Made|Left|Read|Written|Checked|Measured|Refused|Kept|Given)"
            r" (is|are|was|were)\b"
        ),
        "write: subject, verb, object",
    ),
)
