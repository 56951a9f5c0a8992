"""``python -m qaic.cli.util``: ``qaic-util``."""

import sys

from qaic.cli.util import main

sys.exit(main())
