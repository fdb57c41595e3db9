"""A remote control command that makes a worker's loop hang, included into the example's worker by a test."""

from __future__ import annotations

import time
from pathlib import Path

from celery.worker.control import control_command


@control_command(args=[("file", str)])
def hang(state, file):
    """Until the file is gone."""
    while Path(file).exists():
        time.sleep(0.1)
