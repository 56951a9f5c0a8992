"""``qaic-exec``: the older tool, which compiles and then runs unless ``-compile-only`` is given.

The tool is installed only at the vendor's path (`shims`), for scripts that call it there.
"""

import sys
from collections.abc import Sequence

from qaic.cli import console
from qaic.cli.compile import tool


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit code."""
    return console.run(lambda arguments: tool(arguments, name="qaic-exec", runs=True), argv)


if __name__ == "__main__":
    sys.exit(main())
