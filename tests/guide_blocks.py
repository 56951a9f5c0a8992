"""The blocks of code in the README and the guides, and the test that runs each block.

A comment on the line above a block marks it: ``<!-- not run: REASON -->`` for a block that cannot run in a
test, ``<!-- run by PATH -->`` for a test with its own packages.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHELL = ("sh", "bash", "console")
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?^ *```(?P<language>[^\n]*)\n(?P<code>.*?)^ *```$", re.M | re.S
)
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "guide").glob("*.md")),
    ROOT / "docs" / "reference" / "statistics.md",
]


@dataclass(frozen=True)
class Block:
    """One block of a page; `mark` is the text of the comment above it."""

    page: str
    line: int
    language: str
    code: str
    mark: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def reason_not_to_run(self) -> str | None:
        """Text of the mark after "not run:"."""
        return self.mark.removeprefix("not run: ") if (self.mark or "").startswith("not run: ") else None

    @property
    def run_by(self) -> str | None:
        """The path after "run by" in the mark."""
        return self.mark.removeprefix("run by ") if (self.mark or "").startswith("run by ") else None


@cache
def blocks() -> tuple[Block, ...]:
    """Return every block of every page."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("code"))
            found.append(
                Block(str(page.relative_to(ROOT)), line, match["language"], match["code"], match["mark"])
            )
    return tuple(found)


def blocks_to_run(page: str, languages: tuple[str, ...]) -> list[Block]:
    """Return the blocks without a mark on a page, by the path of the page in the repository."""
    return [
        block for block in blocks() if block.page == page and block.language in languages and not block.mark
    ]


def python_of(page: str) -> list[str]:
    """Return the source of the Python blocks without a mark on a page."""
    return [block.code for block in blocks_to_run(page, ("python",))]
