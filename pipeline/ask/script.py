"""How a script that prints is run as a program."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import NoReturn


def run_script(main: Callable[[], int]) -> NoReturn:
    """Exit with the status of `main`; `| head` ends it quietly, without a traceback."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
