"""Runs an example: console, processes, exit code."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import NoReturn

from rich.console import Console
from rich.table import Table

from examples.embedded.processes import Processes

INTERRUPTED = 130


def run(story: Callable[[Console, Processes], bool], status: str | None = None) -> int:
    """Returns the exit code: 0 if the example showed what it must show, 1 if not, 130 after Ctrl-C.

    A terminal shows `status` while the example runs.
    """
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # some terminals lack our characters
    signal.signal(signal.SIGTERM, _terminated)
    console = Console(highlight=False)
    try:
        with Processes(_environment()) as processes, console.status(status) if status else nullcontext():
            return 0 if story(console, processes) else 1
    except KeyboardInterrupt:
        console.print("Interrupted. All processes are stopped.")
        return INTERRUPTED


def wait_until(done: Callable[[], object], what: str, timeout: float = 60) -> None:
    """Wait for `done()`. Raises TimeoutError, which names `what` did not happen."""
    deadline = time.monotonic() + timeout
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {timeout:g} s there is still no sign of {what}")
        time.sleep(0.05)


def figures(*columns: str) -> Table:
    """A table of numbers. The first column has no heading: it names the rows."""
    table = Table("", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _environment() -> dict[str, str]:
    """The environment without Celery's variables, which would override an example's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CELERY_")}


def _terminated(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)
