"""``python -m qaic``: the command ``openqaic``."""

import sys

from qaic.cli.openqaic import main

if __name__ == "__main__":
    sys.exit(main())
