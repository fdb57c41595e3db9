"""A worker step that sees dead pool children early.

The pool learns of a dead child when a pipe closes, which is a moment before the child can be reaped; it then
looks again only after five seconds. Asking the kernel of each child ten times a second costs microseconds,
and is done only while a locked task runs. A child that has finished its work (max_tasks_per_child) is none of
our business: it has released its locks.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.worker import state

from celery_rlock import settings
from celery_rlock.worker.children import has_crashed

_LOOK_EVERY = 0.1

_reaper: Reaper | None = None


def look_after_children() -> None:
    """A child has begun a locked task."""
    if _reaper is not None:
        _reaper.look()


class Reaper(bootsteps.StartStopStep):
    """Has the pool reap dead children at once; only for pools that have any and an event loop."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self.enabled = settings.reaper(worker.app)
        self._pool: Any = None
        self._hub: Any = None
        self._timer: Any = None

    def register_with_event_loop(self, worker: Any, hub: Any) -> None:
        """Celery calls it whenever its loop starts, also after the broker was lost."""
        global _reaper  # a request does not know its worker
        self.stop(worker)
        if hasattr(worker.pool, "maintain_pool"):
            self._pool, self._hub, _reaper = worker.pool, hub, self
            self.look()

    def look(self) -> None:
        if self._timer is None:
            self._timer = self._hub.call_repeatedly(_LOOK_EVERY, self._reap)

    def stop(self, worker: Any) -> None:  # noqa: ARG002 - the step's interface
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _reap(self) -> None:
        processes = getattr(self._pool._pool, "_pool", None) or ()  # noqa: SLF001 - there is no public list
        if any(has_crashed(process.pid) for process in list(processes)):
            self._pool.maintain_pool()
        elif not state.active_requests:
            self.stop(None)
