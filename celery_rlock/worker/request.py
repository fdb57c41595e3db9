"""The request of a locked task, as the worker's parent process sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.signals import task_revoked
from celery.worker.request import Request

from celery_rlock.core.execution import new_delivery
from celery_rlock.skip import Skipped
from celery_rlock.waiter import Waiting

if TYPE_CHECKING:
    from billiard.einfo import ExceptionInfo
    from celery.app.task import Context


class LockedRequest(Request):
    """Names the delivery, so that parent and child know one owner, and announces what ended without a run."""

    _request_dict: dict[str, Any]
    _context: Context

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request_dict["rlock_delivery"] = new_delivery()

    def on_failure(self, exc_info: ExceptionInfo, *args: Any, **kwargs: Any) -> Any:
        result = super().on_failure(exc_info, *args, **kwargs)
        if isinstance(exc_info.exception, Skipped):
            self.send_event("task-revoked", terminated=False, signum=None, expired=False)
            task_revoked.send(self.task, request=self._context, terminated=False, signum=None, expired=False)
        elif isinstance(exc_info.exception, Waiting):
            self.send_event("task-retried", exception=str(exc_info.exception), traceback="")
        return result
