"""An example from its first line to its exit code."""

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
    """The exit code: 0 when the story came out as it must, 1 when it did not, 130 after Ctrl-C.

    A terminal shows `status` as long as it goes on.
    """
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal may lack our characters
    signal.signal(signal.SIGTERM, _terminated)
    console = Console(highlight=False)
    try:
        with Processes(_environment()) as processes, console.status(status) if status else nullcontext():
            return 0 if story(console, processes) else 1
    except KeyboardInterrupt:
        console.print("Interrupted; everything is stopped.")
        return INTERRUPTED


def wait_until(done: Callable[[], object], what: str, timeout: float = 60) -> None:
    """Return when `done()`; a TimeoutError names `what` did not happen."""
    deadline = time.monotonic() + timeout
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout:g} s in vain for {what}")
        time.sleep(0.05)


def figures(*columns: str) -> Table:
    """A table of numbers; the first column says of what."""
    table = Table("", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _environment() -> dict[str, str]:
    """This process's environment without Celery's variables: they would win over an example's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CELERY_")}


def _terminated(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)
