"""Lines that a merge with conflicts leaves in files."""

import subprocess
from pathlib import Path

_MARKER = "^<{7}|^={7}$|^>{7}"


def conflicts(root: Path) -> list[str]:
    """Return the location and line of each marker in the text files that git tracks."""
    command = ["git", "grep", "-nIE", _MARKER]
    found = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)
    # Without matches, the code is 1.
    if found.returncode > 1:
        raise OSError(found.stderr.strip())
    return found.stdout.splitlines()
