"""A limit for each customer, and a rate for the whole fleet."""

import os
import time

import redis
from celery import Celery

from celery_rlock import LockedTask

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
PLACES = {"pro": 3, "free": 1}
RATE, PERIOD = 5, 1.0  # in real life 20 in 60 seconds

app = Celery("limits", broker=URL)


@app.task
def plain_export(customer: str, plan: str) -> None:  # noqa: ARG001 - as below
    write_export("plain_export", customer)


@app.task(
    base=LockedTask,
    lock_key="exports:{customer}",
    lock_limit=lambda plan, **_: PLACES[plan],
)
def export(customer: str, plan: str) -> None:  # noqa: ARG001 - lock_limit uses it
    write_export("export", customer)


@app.task
def plain_call() -> None:
    call_api("plain_call", time.time())


@app.task(base=LockedTask, bind=True, lock_key="api", lock_limit=RATE, lock_hold_at_least=PERIOD)
def call(self: LockedTask) -> None:
    call_api("call", self.lock.token / 1e6)  # a token is the server's time of acquiring, in microseconds


def write_export(task: str, customer: str) -> None:
    """Takes a moment, and notes how many exports of this customer ran at that time."""
    with redis.Redis.from_url(URL) as store:
        store.rpush(f"{task}:{customer}", store.incr(f"running:{task}:{customer}"))
        time.sleep(0.1)
        store.decr(f"running:{task}:{customer}")


def call_api(task: str, at: float) -> None:
    with redis.Redis.from_url(URL) as store:
        store.rpush(task, at)
