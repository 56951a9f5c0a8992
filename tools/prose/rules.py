"""The writing rules that a program can check, with advice; CONTRIBUTING.md has the others."""

import re
from typing import NamedTuple

from prose.texts import Kind, Text

_EVERYWHERE: tuple[Kind, ...] = ("doc", "heading", "prose", "message")
_OF_MESSAGES: tuple[Kind, ...] = ("message", "phrase")
_COUNTED = (
    "activations|arguments|attempts|bindings|blocks|buffers|cards|channels|columns|constants|cores|devices|"
    "dimensions|elements|entries|errors|files|graphs|groups|inferences|inputs|instances|layers|lines|lists|models|"
    "nodes|numbers|objects|operations|operators|options|outputs|programs|records|requests|rows|samples|sections|"
    "segments|sets|shapes|slices|specializations|steps|streams|tensors|threads|tokens|units|values|warnings|weights"
)


class Rule(NamedTuple):
    """A pattern that texts of some kinds must not contain, and the advice for a match."""

    name: str
    pattern: re.Pattern[str]
    advice: str
    kinds: tuple[Kind, ...] = _EVERYWHERE

    def matches(self, text: Text) -> list[tuple[int, str]]:
        """Return line number and line of each match in a text."""
        if text.kind not in self.kinds:
            return []
        found = [
            text.text.count("\n", 0, match.start(1 if match.lastindex else 0))
            for match in self.pattern.finditer(text.text)
        ]
        return [(text.line + offset, text.text.split("\n")[offset].strip()) for offset in found]


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
    Rule("beside", re.compile(r"(?<!--)\bbesides?\b", re.I), "write: next to, in addition to, compared with"),
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
    Rule(
        "article before a value",
        re.compile(r"(?<![-\w])[Aa]n? \{\}"),
        "the value decides between a and an; write: has type {}",
        _OF_MESSAGES,
    ),
    Rule(
        "number before a plural",
        re.compile(rf"(?<!\bof )(?<!at most )(?<!more than )\{{\}} ({_COUNTED})\b"),
        "the number can be 1; write: counted(number, noun)",
        _OF_MESSAGES,
    ),
    Rule(
        "number before a verb",
        re.compile(r"(?<!and )\{\} (are|were|have)\b"),
        "the value can be 1 or one name; write: found {}, expected {}",
        _OF_MESSAGES,
    ),
)
