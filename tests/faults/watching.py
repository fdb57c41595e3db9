"""When things happened: the death of a process, the end of an ownership."""

from __future__ import annotations

import os
import select
import threading
import time

POLL = 0.003


class Watch:
    """Runs `wait` in a thread, and keeps the time at which it returned."""

    def __init__(self, wait) -> None:
        self.at: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._note, args=(wait,), daemon=True)
        self._thread.start()

    def _note(self, wait) -> None:
        if wait(self._over):
            self.at = time.time()

    def join(self, timeout: float = 1.0) -> float | None:
        """The time, once it has happened; None when it does not within `timeout`."""
        self._thread.join(timeout)
        self._over.set()
        self._thread.join()
        return self.at


def death_of(pid: int) -> Watch:
    """The kernel tells it by a descriptor of the process, whoever reaps the process."""
    descriptor = os.pidfd_open(pid)

    def wait(over: threading.Event) -> bool:
        try:
            while not over.is_set():
                if select.select([descriptor], [], [], 0.1)[0]:
                    return True
            return False
        finally:
            os.close(descriptor)

    return Watch(wait)


def end_of_ownership(client, lock: str, task_id: str) -> Watch:
    """The lock's hash is gone, or belongs to another task."""
    mark = task_id.encode()

    def wait(over: threading.Event) -> bool:
        while not over.is_set():
            if not any(field.endswith(mark) for field in client.hkeys(lock)):
                return True
            time.sleep(POLL)
        return False

    return Watch(wait)
