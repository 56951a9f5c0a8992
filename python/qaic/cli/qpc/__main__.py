"""``python -m qaic.cli.qpc``: ``qaic-qpc``."""

import sys

from qaic.cli.qpc import main

sys.exit(main())
