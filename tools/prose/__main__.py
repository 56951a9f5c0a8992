"""Compares the texts of the repository with the writing rules; lists all matches of the rules that are named.

Lines that a merge left are not allowed in any text file. `allowed.toml` contains the number of remaining
matches of each rule, which only decreases.
"""

import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from prose.conflicts import conflicts
from prose.rules import RULES, Rule
from prose.texts import Text, of_file, tracked

_HERE = Path(__file__).parent
_SHOWN = 20


def places(rule: Rule, texts: Iterable[Text]) -> list[str]:
    """Return the location and line of each match of a rule."""
    return [f"{text.path}:{number}: {line}" for text in texts for number, line in rule.matches(text)]


def verdict(texts: Sequence[Text], allowed: Mapping[str, int]) -> tuple[list[str], bool]:
    """Return the report about all rules, and true if no rule has more matches than are allowed."""
    lines, is_good = [], True
    for rule in RULES:
        found, most = places(rule, texts), allowed[rule.name]
        if len(found) > most:
            is_good = False
            lines += [f"{rule.name}: {len(found)} matches, at most {most} are allowed; {rule.advice}"]
            lines += [f"  {place}" for place in found[:_SHOWN]]
            lines += [f"  all of them: PYTHONPATH=tools python -m prose '{rule.name}'"]
        elif len(found) < most:
            lines += [
                f"{rule.name}: {len(found)} matches; lower its number in tools/prose/allowed.toml from {most}"
            ]
    return lines, is_good


def main(arguments: Sequence[str]) -> int:
    """Print the verdict, or the matches of the named rules; return the exit code."""
    root = _HERE.parents[1]
    texts = [text for path in tracked(root) for text in of_file(root, path)]
    if arguments:
        print(*(place for rule in RULES if rule.name in arguments for place in places(rule, texts)), sep="\n")
        return 0
    lines, is_good = verdict(texts, tomllib.loads((_HERE / "allowed.toml").read_text()))
    left = [f"{place}: resolve the conflict of this merge" for place in conflicts(root)]
    print(*left, *lines, sep="\n")
    return 0 if is_good and not left else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
