"""`python -m bertsmith`: the same as the command `bertsmith`."""

import sys

from .cli import main

sys.exit(main())
