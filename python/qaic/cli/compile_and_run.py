"""``qaic-exec``: the older name of ``qaic-compile``, which also runs what it has compiled.

Unless ``-compile-only`` is given. It is only laid at the vendor's path (`shims`), for scripts that call it
there.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from qaic.cli import console
from qaic.cli.compile import tool

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit code."""
    return console.run(lambda arguments: tool(arguments, name="qaic-exec", runs=True), argv)


if __name__ == "__main__":
    sys.exit(main())
