"""``python -m qaic``: the command ``openqaic``."""

import sys

from qaic.cli.entry import openqaic

if __name__ == "__main__":
    sys.exit(openqaic())
