"""Touches a file while the worker's event loop runs, so that a probe can check the age of the file.

`celery inspect ping` would start Python, import the app and ask through the broker, in every pod, every few
seconds. It would also restart the whole fleet when the broker is down.
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
    """While the worker is connected, its event loop touches the file. So a probe notices a loop that hangs.

    Without a connection there is no loop, and a thread touches the file. A restart would not bring the broker
    back, and would end runs that do not need it.
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
    """Beat's default scheduler. It touches the file at each tick."""

    def tick(self, *args: Any, **kwargs: Any) -> Any:
        touch()
        return super().tick(*args, **kwargs)


def install(app: Celery) -> None:
    app.steps["consumer"].add(Alive)
