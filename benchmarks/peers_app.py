"""The same tasks under each lock, set up as the README of that lock says.

A worker serves the variant that `PEERS_VARIANT` names. `build` makes the app of any variant, to publish from.
Broker, results and locks are in the server at `PEERS_URL`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import redis
from celery import Celery

from tests.support.workers import Worker

TTL = 20
PLAIN, PLAIN_AGAIN = "plain task", "plain task again"

Body = Callable[[Any, str], None]


@cache
def store() -> redis.Redis:
    return redis.Redis.from_url(os.environ["PEERS_URL"], socket_timeout=None)  # BLPOP blocks for long


def note(event: str, key: str, task_id: str) -> None:
    store().rpush(f"record:{key}", json.dumps((event, task_id, time.time(), os.getpid())))


def nothing(task: Any, key: str) -> None:
    """The task whose cost is measured."""


def work(task: Any, key: str) -> None:
    """Record start and end. The driver sets the duration, so that equal calls can take different times."""
    note("start", key, task.request.id)
    time.sleep(float(store().get(f"seconds:{key}") or 0))
    note("end", key, task.request.id)


def again(task: Any, key: str) -> None:
    """Run a second time, through `self.retry()`."""
    note("start" if task.request.retries else "first", key, task.request.id)
    if not task.request.retries:
        raise task.retry(countdown=1, max_retries=1)


BODIES: tuple[Body, ...] = (nothing, work, again)


def plain(app: Celery) -> None:
    _declare(app)


def locked(app: Celery) -> None:
    from celery_rlock import LockedTask  # noqa: PLC0415 - a worker loads only the lock that it measures

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
    """By default, its worker waits a second for the lock that the publisher of the task has taken."""
    app.conf.heimdall_unique_lock_blocking = False
    celery_heimdall(app)


def celery_once_task(app: Celery) -> None:
    import celery_once_task as once  # noqa: PLC0415

    once.configure(redis_url=os.environ["PEERS_URL"], queue_lock_timeout=TTL, running_lock_timeout=TTL)
    once.setup_once_task_signals()
    app.steps["worker"].add(once.OnceTaskUnlockBootStep)
    _declare(app, base=once.OnceTask)


def recipe_with_redis_lock(app: Celery) -> None:
    """`redis.lock.Lock` inside the body. If the lock is busy, the body does not run."""

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
    """Celery's cookbook, "Ensuring a task is only executed one at a time": add, then delete unless late."""

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
    PLAIN: (plain, None),
    PLAIN_AGAIN: (plain, None),
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


@contextmanager
def fleet(apps: dict[str, Celery], concurrency: int) -> Iterator[dict[str, Worker]]:
    """A worker for each variant. It has its own queue and loads no other lock."""
    with ExitStack() as stack:
        workers = {}
        for variant, app in apps.items():
            workers[variant] = stack.enter_context(
                Worker(
                    "benchmarks.peers_app:app",
                    concurrency=concurrency,
                    queues=(app.conf.task_default_queue,),
                    env={"PEERS_VARIANT": variant},
                )
            )
            workers[variant].launch()
        for worker in workers.values():
            worker.await_ready()
        yield workers


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
    """Keeps the only slot busy until `name` is opened, so that all tasks are queued before one starts."""
    store().rpush(f"{name}:closed", 1)
    store().blpop([f"{name}:open"], timeout=60)


def _end(name: str) -> None:
    store().rpush(f"{name}:ended", 1)


if "PEERS_VARIANT" in os.environ:
    app = build(os.environ["PEERS_VARIANT"])
