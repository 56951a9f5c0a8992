"""Compares the lines of code of each crate and package with the limits in `limits.toml`.

A line of code is neither blank nor only a comment. A limit decreases with the code; a commit that raises a
limit states the reason.
"""

import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

_HERE = Path(__file__).parent
#: A crate that only tests use.
_CARD = PurePosixPath("tests/kernel/pci_card")
_COMMENT = {".rs": "//", ".py": "#"}
_HEAD = (
    "# Most lines of code of each crate and package (tools/size). A commit that raises one states what for.\n"
)
_LOWER = "`PYTHONPATH=tools python -m size --lower` lowers its limit"
_RAISE = (
    "delete code, or raise the limit in tools/size/limits.toml and state in the commit what the lines are for"
)


def part(path: PurePosixPath) -> str | None:
    """Return the crate or package to which a source file belongs; None if the file is not a source."""
    if path.parts[: len(_CARD.parts)] == _CARD.parts and path.suffix == ".rs":
        return str(_CARD)
    if path.suffix not in _COMMENT or path.parts[0] not in ("python", "rust"):
        return None
    depth = 2 if path.parts[0] == "rust" or len(path.parts) < 4 else 3
    folder = PurePosixPath(*path.parts[:depth])
    return str(folder if folder != path else folder.parent)


def code_lines(text: str, suffix: str) -> int:
    """Return the number of lines that are neither blank nor only a comment."""
    lines = (line.strip() for line in text.splitlines())
    return sum(bool(line) and not line.startswith(_COMMENT[suffix]) for line in lines)


def measured(root: Path) -> Counter[str]:
    """Return the lines of code of each crate and package, in the files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True)
    sizes: Counter[str] = Counter()
    for name in filter(None, listed.stdout.split("\0")):
        path = PurePosixPath(name)
        owner = part(path)
        if owner is not None and (root / path).is_file():
            sizes[owner] += code_lines((root / path).read_text(), path.suffix)
    return sizes


def verdict(sizes: Mapping[str, int], limits: Mapping[str, int]) -> tuple[list[str], bool]:
    """Return the report, and true if no crate or package exceeds its limit."""
    lines, is_good = [], True
    for name in sorted({*sizes, *limits}):
        found, most = sizes.get(name, 0), limits.get(name, 0)
        if found > most:
            is_good = False
            lines.append(f"{name}: {found} lines of code, at most {most} are allowed; {_RAISE}")
        elif found < most:
            lines.append(f"{name}: {found} lines of code, {most} are allowed; {_LOWER}")
    return lines, is_good


def lowered(sizes: Mapping[str, int], limits: Mapping[str, int]) -> dict[str, int]:
    """Return limits that are no higher than the sizes; a limit that is exceeded does not change."""
    return {name: min(sizes[name], most) for name, most in limits.items() if sizes.get(name)}


def text_of(limits: Mapping[str, int]) -> str:
    """Return the text of `limits.toml`."""
    return _HEAD + "".join(f'"{name}" = {limits[name]}\n' for name in sorted(limits))


def main(arguments: Iterable[str]) -> int:
    """Compare sizes with limits, or lower the limits; return the exit code."""
    file = _HERE / "limits.toml"
    sizes, limits = measured(_HERE.parents[1]), tomllib.loads(file.read_text())
    if "--lower" in arguments:
        limits = lowered(sizes, limits)
        file.write_text(text_of(limits))
    lines, is_good = verdict(sizes, limits)
    print(*lines, sep="\n")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
