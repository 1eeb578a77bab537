"""`python -m bertsmith` is `bertsmith`."""

import sys

from .cli import main

sys.exit(main())
