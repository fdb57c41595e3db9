"""A remote control command that blocks a worker's event loop. A test includes it in the example's worker."""

from __future__ import annotations

import time
from pathlib import Path

from celery.worker.control import control_command


@control_command(args=[("file", str)])
def hang(state, file):
    """Write to the file, then block until it is gone."""
    Path(file).write_text("hanging")
    while Path(file).exists():
        time.sleep(0.1)
