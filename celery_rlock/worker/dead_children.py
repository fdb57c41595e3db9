"""A worker step that notices dead pool processes early.

The pool learns about a dead child when a pipe closes. At that moment the child often cannot be reaped yet,
and the pool looks again only after five seconds. This step asks the kernel about each child ten times a
second, which costs microseconds, and only while a locked task runs. A child that has finished its work
(max_tasks_per_child) has released its locks and is left alone.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.worker import state

from celery_rlock import settings
from celery_rlock.worker.celery_internals import has_crashed, pool_pids

_LOOK_EVERY = 0.1

_reaper: Reaper | None = None


def watch_children() -> None:
    """A child has begun a locked task, so look for dead children from now on."""
    if _reaper is not None:
        _reaper.watch()


class Reaper(bootsteps.StartStopStep):
    """Makes the pool reap dead children at once. Needs a pool with processes and an event loop."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self.enabled = settings.reaper(worker.app)
        self._pool: Any = None
        self._hub: Any = None
        self._timer: Any = None

    def register_with_event_loop(self, worker: Any, hub: Any) -> None:
        """Celery calls this whenever its loop starts, also after it lost the broker."""
        global _reaper  # a request does not know its worker
        self.stop(worker)
        if hasattr(worker.pool, "maintain_pool"):
            self._pool, self._hub, _reaper = worker.pool, hub, self
            self.watch()

    def watch(self) -> None:
        if self._timer is None:
            self._timer = self._hub.call_repeatedly(_LOOK_EVERY, self._reap)

    def stop(self, worker: Any) -> None:  # noqa: ARG002 - the step's interface
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _reap(self) -> None:
        if any(map(has_crashed, pool_pids(self._pool))):
            self._pool.maintain_pool()
        elif not state.active_requests:
            self.stop(None)
