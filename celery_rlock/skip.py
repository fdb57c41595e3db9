"""Ending a task that is not to run: visibly, and for everybody who waits for it."""

from __future__ import annotations

from typing import NoReturn

from celery import states
from celery.exceptions import Ignore, TaskRevokedError

from celery_rlock.call import Call
from celery_rlock.errors import LockBusy


class Skipped(Ignore):
    """Tells the worker that the task was skipped; its state is already stored."""


def skip(call: Call, busy: LockBusy) -> NoReturn:
    """Store REVOKED with who holds the lock; a chord ends in its errback, a chain's other tasks end too."""
    reason = f"skipped: lock {busy.key!r} is held by {busy.holder}"
    call.task.backend.mark_as_failure(
        call.request.id,
        TaskRevokedError(reason),
        request=call.request,
        store_result=not call.request.ignore_result,
        call_errbacks=False,
        state=states.REVOKED,
    )
    raise Skipped(reason)
