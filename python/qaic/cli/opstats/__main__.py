"""``python -m qaic.cli.opstats``: ``qaic-opstats``."""

import sys

from qaic.cli.opstats import main

sys.exit(main())
