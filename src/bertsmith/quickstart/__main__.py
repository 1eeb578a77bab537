"""`python -m bertsmith.quickstart`."""

import sys

from ..signals import end_process_on_stop

if __name__ == "__main__":
    end_process_on_stop()
    from .run import main

    sys.exit(main())
