"""Runs a view under the same lock as a task."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse

from celery_rlock import RLock

View = Callable[..., HttpResponse]


def one_at_a_time(key: str, *, wait: float = 0) -> Callable[[View], View]:
    """Run the view under this lock; when it is still busy after `wait` seconds, the answer is 409.

    `key` is a template over what the URL captures, as `lock_key` is one over a task's arguments.
    """

    def decorate(view: View) -> View:
        @transaction.non_atomic_requests  # with ATOMIC_REQUESTS the commit would come after the release
        @wraps(view)
        def locked(request: HttpRequest, **captured: Any) -> HttpResponse:
            lock = RLock(key.format(**captured))
            if not lock.acquire(timeout=wait):
                return JsonResponse({"busy": lock.key}, status=409, headers={"Retry-After": "1"})
            try:
                return view(request, **captured)
            finally:
                lock.release()

        return locked

    return decorate
