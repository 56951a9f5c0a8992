"""``python -m qaic.cli.compile``: ``qaic-compile``."""

import sys

from qaic.cli.compile import main

sys.exit(main())
