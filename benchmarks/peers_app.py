"""The same task under each lock that a Celery project can install, each as its own README says.

`PEERS_VARIANT` chooses the one that a worker serves; `build` makes any of them, to publish from. Broker,
results and locks are in the server at `PEERS_URL`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import redis
from celery import Celery

TTL = 20

Body = Callable[[Any, str], None]


@cache
def store() -> redis.Redis:
    return redis.Redis.from_url(os.environ["PEERS_URL"], socket_timeout=None)  # it blocks in BLPOP


def note(event: str, key: str, task_id: str) -> None:
    store().rpush(f"record:{key}", json.dumps((event, task_id, time.time(), os.getpid())))


def nothing(task: Any, key: str) -> None:
    """What the cost is measured on."""


def work(task: Any, key: str) -> None:
    """On record, for as long as the driver says: calls with the same arguments may take different times."""
    note("start", key, task.request.id)
    time.sleep(float(store().get(f"seconds:{key}") or 0))
    note("end", key, task.request.id)


def again(task: Any, key: str) -> None:
    """Run once more, by the task's own retry, and be done."""
    note("start" if task.request.retries else "first", key, task.request.id)
    if not task.request.retries:
        raise task.retry(countdown=1, max_retries=1)


BODIES: tuple[Body, ...] = (nothing, work, again)


def plain(app: Celery) -> None:
    _declare(app)


def locked(app: Celery) -> None:
    from celery_rlock import LockedTask  # noqa: PLC0415 - a worker loads what it measures, and nothing else

    _declare(app, base=LockedTask, lock_ttl=TTL)


def locked_from_publish(app: Celery) -> None:
    from celery_rlock import LockedTask  # noqa: PLC0415

    _declare(app, base=LockedTask, lock_ttl=TTL, lock_queue_ttl=TTL, lock_from="publish")


def celery_once(app: Celery) -> None:
    from celery_once import QueueOnce  # noqa: PLC0415

    settings = {"url": os.environ["PEERS_URL"], "default_timeout": TTL}
    app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": settings}
    _declare(app, base=QueueOnce, once={"graceful": True})


def celery_singleton(app: Celery) -> None:
    from celery_singleton import Singleton  # noqa: PLC0415

    _declare(app, base=Singleton, lock_expiry=TTL)


def celery_heimdall(app: Celery) -> None:
    from celery_heimdall import HeimdallTask  # noqa: PLC0415

    _declare(app, base=HeimdallTask, heimdall={"unique": True, "unique_timeout": TTL})


def celery_heimdall_not_blocking(app: Celery) -> None:
    """By default its worker waits a second for the lock that its own publisher has taken."""
    app.conf.heimdall_unique_lock_blocking = False
    celery_heimdall(app)


def celery_once_task(app: Celery) -> None:
    import celery_once_task as once  # noqa: PLC0415

    once.configure(redis_url=os.environ["PEERS_URL"], queue_lock_timeout=TTL, running_lock_timeout=TTL)
    once.setup_once_task_signals()
    app.steps["worker"].add(once.OnceTaskUnlockBootStep)
    _declare(app, base=once.OnceTask)


def recipe_with_redis_lock(app: Celery) -> None:
    """`redis.lock.Lock` inside the body; a busy one skips."""

    @contextmanager
    def lock(key: str, _: str) -> Iterator[bool]:
        held = store().lock(f"lock:{key}", timeout=TTL)
        taken = held.acquire(blocking=False)
        try:
            yield taken
        finally:
            if taken and held.owned():
                held.release()

    _declare_by_hand(app, lock)


def recipe_of_the_cookbook(app: Celery) -> None:
    """Celery's own "ensuring a task is only executed one at a time": add, and delete unless it is late."""

    @contextmanager
    def lock(key: str, owner: str) -> Iterator[bool]:
        late = time.monotonic() + TTL - 3
        taken = bool(store().set(f"lock:{key}", owner, nx=True, ex=TTL))
        try:
            yield taken
        finally:
            if taken and time.monotonic() < late:
                store().delete(f"lock:{key}")

    _declare_by_hand(app, lock)


VARIANTS: dict[str, tuple[Callable[[Celery], None], str | None]] = {
    "plain task": (plain, None),
    "LockedTask": (locked, "celery-rlock"),
    'LockedTask, lock_from="publish"': (locked_from_publish, "celery-rlock"),
    "celery-once": (celery_once, "celery-once"),
    "celery-singleton": (celery_singleton, "celery-singleton"),
    "celery-heimdall": (celery_heimdall, "celery-heimdall"),
    "celery-heimdall, not blocking": (celery_heimdall_not_blocking, "celery-heimdall"),
    "celery-once-task": (celery_once_task, "celery-once-task"),
    "recipe, redis.lock.Lock": (recipe_with_redis_lock, "redis"),
    "recipe, SET NX": (recipe_of_the_cookbook, "redis"),
}


def build(variant: str) -> Celery:
    """An app with one task for each of BODIES, `gate` and `end`, on a queue of the variant's own."""
    url = os.environ["PEERS_URL"]
    app = Celery(variant, broker=url, backend=url, set_as_current=False)
    app.conf.update(
        task_default_queue=f"peers-{list(VARIANTS).index(variant)}", broker_connection_retry_on_startup=True
    )
    VARIANTS[variant][0](app)
    app.task(_gate, name="gate", ignore_result=True, shared=False)
    app.task(_end, name="end", ignore_result=True, shared=False)
    app.finalize()
    return app


def _declare(app: Celery, **options: Any) -> None:
    for body in BODIES:
        app.task(body, name=body.__name__, bind=True, ignore_result=True, shared=False, **options)


def _declare_by_hand(app: Celery, lock: Any) -> None:
    for body in BODIES:
        app.task(_under(lock, body), name=body.__name__, bind=True, ignore_result=True, shared=False)


def _under(lock: Any, body: Body) -> Body:
    def run(self: Any, key: str) -> None:
        with lock(key, self.request.id) as taken:
            if taken:
                body(self, key)

    return run


def _gate(name: str) -> None:
    """Keeps the only slot until `name` is opened, so that all that is published meanwhile lies ready."""
    store().rpush(f"{name}:closed", 1)
    store().blpop([f"{name}:open"], timeout=60)


def _end(name: str) -> None:
    store().rpush(f"{name}:ended", 1)


if "PEERS_VARIANT" in os.environ:
    app = build(os.environ["PEERS_VARIANT"])
