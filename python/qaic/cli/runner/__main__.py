"""``python -m qaic.cli.runner``: ``qaic-runner``."""

import sys

from qaic.cli.runner import main

sys.exit(main())
