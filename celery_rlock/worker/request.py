"""The request of a locked task, as the worker's parent process sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.signals import task_revoked
from celery.worker.request import Request

from celery_rlock.core.execution import new_delivery
from celery_rlock.skip import Skipped

if TYPE_CHECKING:
    from billiard.einfo import ExceptionInfo
    from celery.app.task import Context


class LockedRequest(Request):
    """Names the delivery, so that parent and child know the same owner, and announces a skip."""

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
        return result
