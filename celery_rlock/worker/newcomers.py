"""New messages that wait in this worker at once, because a task with their key already waits here."""

from __future__ import annotations

from typing import Any

from celery_rlock.log import logger
from celery_rlock.options.arguments import is_plain
from celery_rlock.options.options import Options
from celery_rlock.server.redis_keys import RedisKeys

#: Longer messages go to the pool: the key may be made of all their arguments, which takes time.
_LONGEST_BODY = 4096

#: A short message in these cannot become a large or endless value, as YAML's references can.
_PLAIN_CONTENT = frozenset({"application/json", "application/x-msgpack"})


class Newcomers:
    """Knows which locks tasks wait for in this worker, and finds the new messages that need the same locks.

    Such a message would be delivered to the pool, find its lock busy, and be published again. `line_for` is
    called on the worker's event loop, so it runs no code of the user and does not ask Redis.

    Some pools have no event loop, and call this from several threads. The worst that can come of it is a
    message that goes to the pool.
    """

    def __init__(self) -> None:
        #: The requests that wait, by the Redis name of their lock and by their task.
        self._by_lock: dict[str, set[Any]] = {}
        self._by_task: dict[str, set[Any]] = {}

    def add(self, lock: str, request: Any) -> None:
        """The server has said that this request waits for this lock."""
        self._by_lock.setdefault(lock, set()).add(request)
        self._by_task.setdefault(request.task.name, set()).add(request)

    def discard(self, lock: str, request: Any) -> None:
        """The request does not wait any more."""
        for waiting, name in ((self._by_lock, lock), (self._by_task, request.task.name)):
            others = waiting.get(name, set())
            others.discard(request)
            if not others:
                waiting.pop(name, None)

    def line_for(self, request: Any) -> RedisKeys | None:
        """The lock that this message may wait for without a visit to the pool; None: the pool decides.

        Only for a task that already waits here, because making a key takes time.
        """
        if request.task.name not in self._by_task:
            return None
        try:
            redis_keys = _only_key(request)
        except Exception as error:  # noqa: BLE001 - a message may say anything, and the pool tells what is wrong
            logger.debug("no key for %s: %r", request.id, error)
            return None
        return redis_keys if redis_keys is not None and redis_keys.lock in self._by_lock else None


def _only_key(request: Any) -> RedisKeys | None:
    """The key of a new message. None for a task that decides something in the pool before it waits."""
    headers, plan = request.rlock_headers, request.rlock_plan
    if plan is None or headers.is_waiter or not request.is_first_attempt or request.eta is not None:
        return None
    if not (_only_waits(plan.options) and plan.has_plain_key and _has_plain_arguments(request)):
        return None
    [redis_keys] = request.rlock_redis_keys()
    return redis_keys  # type: ignore[no-any-return]


def _only_waits(options: Options) -> bool:
    """Whether a busy lock means nothing else than to wait for the turn.

    A key with places for several waits in the pool first: whether one is free depends on the limits of all
    that are inside.
    """
    return (
        options.busy == "retry"
        and options.max_attempts is None
        and options.wait == 0
        and options.unavailable == "retry"
        and options.from_ == "run"
        and options.limit == 1
    )


def _has_plain_arguments(request: Any) -> bool:
    if request.content_type not in _PLAIN_CONTENT or len(request.body) > _LONGEST_BODY:
        return False
    return is_plain(request.args) and is_plain(request.kwargs)
