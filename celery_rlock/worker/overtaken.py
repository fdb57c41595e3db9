"""Deliveries that were overtaken: their task was woken so soon that it began again before they were over."""

from __future__ import annotations

from typing import Any

from kombu.utils.functional import LRUCache

from celery_rlock.waiter import ATTEMPTS

#: The attempts before the last delivery that has begun here, of each task that has waited.
_begun: Any = LRUCache(limit=10_000)


def begins(request: Any) -> None:
    """This delivery has been given to the pool."""
    attempts = _attempts(request)
    if attempts:
        _begun[_task(request)] = attempts


def is_overtaken(request: Any) -> bool:
    """Whether a later delivery has begun here: what this one would tell of its task is not so any more."""
    return bool(_begun.get(_task(request), 0) > _attempts(request))


def _task(request: Any) -> tuple[str, int]:
    return request.id, request.request_dict.get("retries") or 0


def _attempts(request: Any) -> int:
    return sum(request.request_dict.get(header) or 0 for header in ATTEMPTS)
