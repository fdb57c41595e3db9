"""What a process still has to do in Redis, off the thread that has something better to do."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from celery_rlock.core.log import logger
from celery_rlock.errors import LockUnavailable

_LOOK_EVERY = 0.02
_TRY_FOR = 60.0
_PAUSE_AFTER_ERROR = 0.5


@dataclass
class Errand:
    """Something to do as soon as it is time."""

    what: str
    do: Callable[[], None]
    is_time: Callable[[], bool]
    give_up: float


class Errands:
    """One thread, started by the first errand; it sleeps while there is none."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: a forked child runs no errands of its parent."""
        self._changed = threading.Condition()
        self._open: list[Errand] = []
        self._thread: threading.Thread | None = None

    def add(
        self,
        what: str,
        do: Callable[[], None],
        is_time: Callable[[], bool] = lambda: True,
        give_up: float | None = None,
    ) -> None:
        """Do it as soon as it is time; LockUnavailable is tried again until `give_up`, or for a minute."""
        with self._changed:
            self._open.append(Errand(what, do, is_time, give_up or monotonic() + _TRY_FOR))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rlock-errands", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._open:
                    self._changed.wait()
                errands = list(self._open)
            done = [errand for errand in errands if errand.is_time() and self._is_done(errand)]
            with self._changed:
                self._open = [errand for errand in self._open if errand not in done]
                if self._open:
                    self._changed.wait(_LOOK_EVERY)

    def _is_done(self, errand: Errand) -> bool:
        try:
            errand.do()
        except LockUnavailable as error:
            if monotonic() < errand.give_up:
                threading.Event().wait(_PAUSE_AFTER_ERROR)
                return False
            logger.warning("could not %s: %s", errand.what, error)
        except Exception:
            logger.exception("could not %s", errand.what)
        return True


errands = Errands()
os.register_at_fork(after_in_child=errands.reset)
