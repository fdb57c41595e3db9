"""A file that is touched while the worker's loop turns, for the kubelet to look at.

`celery inspect ping` would start a Python, import the app and ask through the broker, in every pod every few
seconds, and would restart the whole fleet when the broker is down. To look at a file asks nobody.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from celery import Celery, bootsteps
from celery.beat import PersistentScheduler

EVERY = 2.0  # seconds


def touch() -> None:
    path = os.environ.get("ALIVE_FILE")
    if path:
        Path(path).touch()


class Alive(bootsteps.StartStopStep):
    """While the worker is connected its own loop touches the file, so that a loop that hangs is seen.

    While it is not, there is no loop. A thread touches the file then: a restart brings no broker back, and
    would end the runs that need none.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._timer: Any = None
        self._connected = threading.Event()

    def start(self, consumer: Any) -> None:
        self._connected.set()
        touch()
        self._timer = consumer.timer.call_repeatedly(EVERY, touch)

    def stop(self, _consumer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._connected = threading.Event()
            threading.Thread(target=_touch_until, args=(self._connected,), daemon=True).start()


def _touch_until(connected: threading.Event) -> None:
    while not connected.wait(EVERY):
        touch()


class Scheduler(PersistentScheduler):
    """Beat's own, which touches the file at every look at its schedule."""

    def tick(self, *args: Any, **kwargs: Any) -> Any:
        touch()
        return super().tick(*args, **kwargs)


def install(app: Celery) -> None:
    app.steps["consumer"].add(Alive)
