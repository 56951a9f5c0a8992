"""Command-line tools: argument vectors in, calls of the layers below, text and exit codes out."""

import sys

# ``python -m qaic.cli.TOOL`` loads this package first; until it has found the tool, the program's name is -m.
if sys.argv[:1] == ["-m"]:
    from qaic.cli.entry import end_when_interrupted

    end_when_interrupted()
