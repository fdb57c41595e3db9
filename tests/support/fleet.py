"""Fleets of workers of a test project, and the tasks that tests send to them."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from celery import Celery, states
from celery.backends.base import Backend

from tests.support.daemon import running
from tests.support.processes import wait_until
from tests.support.workers import Worker

#: The workers that run at this moment. When a test fails, the fixtures print their logs.
RUNNING: list[Worker] = []


class Publisher(Celery):
    """An app without tasks, to publish with. `kind` is "redis" or "rabbitmq", `port` the broker's port."""

    def __init__(self, kind: str, url: str, port: int) -> None:
        super().__init__("publisher", broker=url, set_as_current=False)
        self.kind, self.port = kind, port


def make_worker(
    project: str,
    environment: Mapping[str, str],
    *,
    conf: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> Worker:
    """A worker of `project` (a module) that is not launched yet; `conf` adds to the app's settings."""
    env = {**environment, **(env or {}), "RLOCK_TEST_CONF": json.dumps(conf or {})}
    return Worker(f"{project}:app", env=env, **options)


@contextmanager
def running_fleet(
    project: str, environment: Mapping[str, str], count: int = 1, **options: Any
) -> Iterator[list[Worker]]:
    """`count` equal workers, ready inside the block and gone after it; `options` are those of make_worker."""
    fleet = [make_worker(project, environment, **options) for _ in range(count)]
    RUNNING.extend(fleet)
    try:
        with running(fleet):
            yield fleet
    finally:
        for worker in fleet:
            RUNNING.remove(worker)


def redelivered_after(seconds: float, kind: str = "redis") -> dict[str, Any]:
    """Settings with which the Redis broker redelivers an unacknowledged message after `seconds`.

    The default is an hour. RabbitMQ redelivers when the connection closes, and needs no setting.
    One worker at a time redelivers. If it is killed or cut off just then, the others may do so after 2 s.
    kombu's default is five minutes.
    """
    if kind != "redis":
        return {}
    options = {
        "visibility_timeout": seconds,
        "unacked_restore_interval": 0.5,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 2,
    }
    return {"broker_transport_options": options}


class UnackedMessage:
    """The message of a task that the Redis broker has delivered and that is not acknowledged."""

    def __init__(self, app: Celery, task_id: str) -> None:
        self._app, self._task_id = app, task_id
        with app.connection_for_write() as connection:
            self._tag, self._content = wait_until(
                lambda: self._find(connection.default_channel), what=f"the message of {task_id}"
            )

    def redeliver(self) -> None:
        """Have the broker deliver it again, as kombu does after the visibility timeout."""
        with self._app.connection_for_write() as connection:
            channel: Any = connection.default_channel
            channel.client.hsetnx(channel.unacked_key, self._tag, self._content)
            channel.qos.restore_by_tag(self._tag)

    def is_acknowledged(self, queue: str = "celery") -> bool:
        """Whether no delivery of it is queued, waits or runs."""
        with self._app.connection_for_write() as connection:
            channel: Any = connection.default_channel
            queued = [text(message) for message in channel.client.lrange(queue, 0, -1)]
            return self._find(channel) is None and not any(self._task_id in message for message in queued)

    def _find(self, channel: Any) -> tuple[str, str] | None:
        unacked = {
            text(tag): text(message) for tag, message in channel.client.hgetall(channel.unacked_key).items()
        }
        own = [found for found in unacked.items() if self._task_id in found[1]]
        return min(own, key=lambda found: nesting_of(found[1]), default=None)


def nesting_of(content: str) -> int:
    """How often a task had replaced itself before this message: the replacement has the same task id."""
    message, *_ = json.loads(content)
    return message["headers"].get("replaced_task_nesting") or 0


def text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


class Sent:
    """A published task. Each look at its result reads the backend, so no subscription can lag behind."""

    def __init__(self, backend: Backend, task_id: str) -> None:
        self._backend, self.id = backend, task_id

    @property
    def state(self) -> str:
        return self._stored()["status"]

    def get(self, timeout: float) -> Any:
        """What the task returned, or raise what it raised."""
        stored = wait_until(self._ended, timeout=timeout, what="the result")
        if isinstance(stored["result"], BaseException):
            raise stored["result"]
        return stored["result"]

    def _ended(self) -> dict[str, Any] | None:
        stored = self._stored()
        return stored if stored["status"] in states.READY_STATES else None

    def _stored(self) -> dict[str, Any]:
        return self._backend.get_task_meta(self.id, cache=False)


def kill(worker: Worker) -> None:
    """SIGKILL to all processes of the worker at once, so that none of them can release a lock."""
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def deliveries(fleet: Sequence[Worker]) -> Counter[str]:
    """How often the workers received each task id."""
    return Counter(re.findall(r"\[([\w-]+)\] received", "".join(worker.log for worker in fleet)))


def inspect(app: Celery, fleet: Sequence[Worker], what: str) -> dict[str, Any]:
    """The answers of all these workers to `celery inspect <what>`, by nodename."""
    names = [worker.nodename for worker in fleet]

    def answers() -> dict[str, Any] | None:
        found = getattr(app.control.inspect(destination=names, timeout=5, limit=len(names)), what)()
        return found if found and len(found) == len(names) else None

    return wait_until(answers, timeout=40, what=f"{what} of {names}")


def await_rest(app: Celery, fleet: Sequence[Worker]) -> None:
    """Return when no task of these workers runs or is about to."""

    def at_rest() -> bool:
        return not any(
            tasks for what in ("active", "reserved") for tasks in inspect(app, fleet, what).values()
        )

    wait_until(at_rest, timeout=40, what="the fleet to be at rest", every=0.1)
