"""Workers and beats record what they do in a Redis list, one list for each round."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeAlias

import redis
from celery import Task
from celery.signals import after_task_publish, beat_init

Event: TypeAlias = dict[str, Any]


@contextmanager
def recorded(task: Task) -> Iterator[None]:
    """Record the start and the end of one run. A killed run has no end."""
    run = {"run": uuid.uuid4().hex, "task_id": task.request.id, "worker": _worker(task.request.hostname)}
    _record(task.name, event="start", **run)
    yield
    _record(task.name, event="end", **run)


def events(client: redis.Redis, round_name: str) -> list[Event]:
    """All events of a round so far, in the order of their arrival in Redis."""
    return [json.loads(line) for line in client.lrange(_key(round_name), 0, -1)]


# Workers publish too, when a task is retried. Only the messages of beat are new tasks.
@beat_init.connect
def _record_what_beat_publishes(**_: Any) -> None:
    after_task_publish.connect(_record_published, weak=False)


def _record_published(sender: str, headers: Mapping[str, Any], **_: Any) -> None:
    _record(sender, event="published", task_id=headers["id"], pid=os.getpid())


def _record(round_name: str, **event: Any) -> None:
    _client().rpush(_key(round_name), json.dumps({"at": time.time(), **event}))


def _key(round_name: str) -> str:
    return f"demo:{round_name}"


def _worker(hostname: str | None) -> str:
    return str(hostname).partition("@")[0]


@cache
def _client() -> redis.Redis:
    return redis.Redis.from_url(os.environ["DEMO_REDIS_URL"])
