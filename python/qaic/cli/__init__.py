"""Command-line tools: they parse arguments, call other packages, and print text and set exit codes."""

import sys

# ``python -m qaic.cli.TOOL`` loads this package first, and the name of the program is -m until it finds TOOL.
if sys.argv[:1] == ["-m"]:
    from qaic.cli.entry import end_when_interrupted

    end_when_interrupted()
