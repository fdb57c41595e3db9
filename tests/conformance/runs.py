"""Runs of all cells on the workers of one broker, or beside the real packages that observe tasks."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from celery import Celery

from celery_rlock.core.lock import ReentrantLock
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from tests.cli.telemetry_fleet import EventCapture
from tests.conformance.notes import ACKS, RUN, TWINS, nodename
from tests.conformance.outcomes import Sources, ends, is_over, outcome, read_notes, without_waiting
from tests.conformance.shapes import SHAPES, Shape
from tests.support.daemon import ROOT, running
from tests.support.fleet import RUNNING, await_rest, make_worker
from tests.support.processes import wait_until

PROJ = "tests.conformance.proj"
POOLS = ("prefork", "threads", "gevent", "solo")
#: Enough for each pool to run tasks at the same time, on two cores.
CONCURRENCY = {"prefork": 2, "threads": 4, "gevent": 20, "solo": 1}

#: With a small prefetch count, a solo worker with scheduled tasks pauses for seconds, plain or locked.
WORKER = {"worker_prefetch_multiplier": 200}

SOON = 30.0
#: All cells of a fleet take a few seconds, and a minute on a machine that has ten other things to do. A cell
#: that is not over by then is compared as it is.
LONGEST = 120.0


@dataclass(frozen=True)
class Run:
    """One worker, with a queue of its own that has the same name."""

    name: str
    pool: str = "prefork"
    env: Mapping[str, str] = field(default_factory=dict)
    conf: Mapping[str, Any] = field(default_factory=dict)
    meta: Callable[[str], Mapping[str, Any]] | None = None  #: how to read a result; None: from Redis
    sees: str = ""  #: how the notes of the run's package begin

    @property
    def environment(self) -> dict[str, str]:
        return {**self.env, RUN: self.name, "RLOCK_TEST_CONF": json.dumps({**self.conf})}


class Fleet:
    """The runs of one broker: it publishes all cells, waits for their ends, and compares the twins."""

    def __init__(self, runs: list[Run], broker_url: str, redis: Any) -> None:
        self.runs, self._redis = runs, redis
        self._broker_url, self._store = broker_url, redis.client()
        self._environment = {
            "RLOCK_TEST_BROKER": broker_url,
            "RLOCK_TEST_BACKEND": redis.url,
            "RLOCK_TEST_LOCKS": redis.url,
            "RLOCK_TEST_STORE": redis.url,
        }
        self._events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._outcomes: dict[tuple[str, str], dict[str, Any]] = {}
        self._reader = Celery("reader", backend=redis.url, set_as_current=False)

    def run_all(self) -> None:
        """Return when every cell of every run is over, or cannot be any more."""
        workers = [self._worker(run) for run in self.runs]
        RUNNING.extend(workers)
        app = Celery("conformance-reader", broker=self._broker_url, set_as_current=False)
        try:
            with app, EventCapture(self._broker_url) as capture, running(workers):
                with self._holding_the_keys_of_waiters():
                    self._publish()
                    self._await(self._has_waited, SOON)
                self._await(self._is_over, LONGEST)
                with suppress(AssertionError):  # a task that keeps its process for ever fails its own cell
                    await_rest(app, workers)
                _await_silence(capture)
                for event in list(capture.events):
                    self._events[event.get("uuid", "")].append(event)
        finally:
            for worker in workers:
                RUNNING.remove(worker)

    def compare(self, run: Run, ack: str, twin: str, shape: Shape) -> tuple[Any, Any]:
        """What the plain task did, and what its twin did."""
        plain, other = (self._outcome(run, f"{ack}.{one}.{shape.name}", shape) for one in ("plain", twin))
        return (without_waiting(plain), without_waiting(other)) if twin == "waited" else (plain, other)

    def _outcome(self, run: Run, cell: str, shape: Shape) -> dict[str, Any]:
        if (run.name, cell) not in self._outcomes:
            meta = run.meta or self._reader.backend.get_task_meta
            sources = Sources(lambda task_id: self._events.get(task_id, []), meta)
            notes = read_notes(self._store, run.name, cell)
            self._outcomes[run.name, cell] = found = outcome(sources, notes, shape)
            if ".plain." in cell:
                _check_that_it_ran(run, notes, cell, shape)
                _check_that_it_is_stored(found, notes, shape)
        return self._outcomes[run.name, cell]

    def _worker(self, run: Run) -> Any:
        return make_worker(
            PROJ,
            self._environment,
            conf={**WORKER, **run.conf, "task_default_queue": run.name, "rlock_prefix": run.name},
            env={**run.env, RUN: run.name},
            hostname=nodename(run.name),
            pool=run.pool,
            concurrency=CONCURRENCY[run.pool],
            queues=[run.name],
            args=["-E"],
        )

    def _publish(self) -> None:
        """In one process for all runs with the same environment: to import the project takes longest."""
        drivers: dict[str, list[Run]] = defaultdict(list)
        for run in self.runs:
            drivers[json.dumps([run.env, run.conf])].append(run)
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.conformance.driver", *(run.name for run in runs)],
                env={**os.environ, **self._environment, **runs[0].environment},
                cwd=ROOT,
            )
            for runs in drivers.values()
        ]
        assert [process.wait(LONGEST) for process in started] == [0] * len(started)

    @contextmanager
    def _holding_the_keys_of_waiters(self) -> Iterator[None]:
        client = connect(self._redis.url)
        with ExitStack() as stack:
            for run, cell, _, _ in self._cells("waited"):
                lock_server = RedisLockServer(client, run.name)
                stack.enter_context(ReentrantLock(cell, lock_server=lock_server, ttl=2 * LONGEST))
            yield

    def _cells(self, *twins: str) -> Iterator[tuple[Run, str, str, Shape]]:
        for run in self.runs:
            for ack in ACKS:
                for twin in twins:
                    for shape in SHAPES:
                        if twin != "waited" or shape.waits:
                            yield run, f"{ack}.{twin}.{shape.name}", ack, shape

    def _await(self, is_done: Callable[[Run, str, str, Shape], bool], timeout: float) -> None:
        """Return when this is true of all cells; after the timeout return all the same."""
        left = list(self._cells(*TWINS))

        def none_is_left() -> bool:
            left[:] = [cell for cell in left if not is_done(*cell)]
            return not left

        try:
            wait_until(none_is_left, timeout=timeout, every=0.3)
        except AssertionError:
            print(f"after {timeout} s:", [(run.name, cell) for run, cell, _, _ in left])

    def _is_over(self, run: Run, cell: str, ack: str, shape: Shape) -> bool:
        return is_over(read_notes(self._store, run.name, cell), ack, shape)

    def _has_waited(self, run: Run, cell: str, ack: str, shape: Shape) -> bool:
        notes = read_notes(self._store, run.name, cell)
        return (
            ".waited." not in cell
            or any(note["kind"] == "lock_busy" for note in notes)
            or is_over(notes, ack, shape)
        )


def _check_that_it_ran(run: Run, notes: list[dict[str, Any]], cell: str, shape: Shape) -> None:
    """Without this, two tasks that both did nothing would be the same."""
    ack = cell.partition(".")[0]
    assert ends(notes) == shape.wanted(ack), f"{cell} did not end as its shape says: {notes}"
    kinds = {note["kind"] for note in notes if not note.get("role", "").startswith("celery.")}
    if run.sees and {"task_received", "task_prerun"} <= kinds:
        assert any(kind.startswith(run.sees) for kind in kinds), f"{run.sees} saw nothing of {cell}"


def _check_that_it_is_stored(found: Mapping[str, Any], notes: list[dict[str, Any]], shape: Shape) -> None:
    if shape.name != "ignoring_its_result" and {"task_received", "task_success"} <= {
        n["kind"] for n in notes
    }:
        assert "SUCCESS" in {task["stored"]["status"] for task in found["tasks"]}, found


def _await_silence(capture: EventCapture) -> None:
    """Return when no event has come for longer than a worker collects events."""
    seen = -1

    def is_silent() -> bool:
        nonlocal seen
        before, seen = seen, len(capture.events)
        return seen == before

    wait_until(is_silent, timeout=SOON, what="the last event", every=1.5)


#: RabbitMQ's default exchange type is direct. A topic exchange lets RabbitMQ delay messages itself.
BROKERS: dict[str, dict[str, Any]] = {
    "redis": {},
    "classic": {},
    "direct": {"task_default_queue_type": "quorum"},
    "topic": {
        "task_default_queue_type": "quorum",
        "task_default_exchange": "conformance",
        "task_default_exchange_type": "topic",
    },
}


def runs_on(broker: str) -> list[Run]:
    return [Run(f"{broker}-{pool}", pool, conf=BROKERS[broker]) for pool in POOLS]


def runs_beside_packages(database: str) -> list[Run]:
    env, results = django_environment(database), {"result_backend": "django-db"}
    return [
        Run("sentry", env={"RLOCK_CONFORMANCE_PACKAGE": "tests.conformance.with_sentry"}, sees="sentry"),
        Run("otel", env={"RLOCK_CONFORMANCE_PACKAGE": "tests.conformance.with_opentelemetry"}, sees="span"),
        Run("django", env=env, conf=results, meta=_row_in(database)),
    ]


def django_environment(database: str) -> dict[str, str]:
    """The environment of a process with Django, whose database has all tables."""
    env = {
        "DJANGO_SETTINGS_MODULE": "tests.conformance.django_settings",
        "RLOCK_CONFORMANCE_DATABASE": database,
        "RLOCK_CONFORMANCE_PACKAGE": "tests.conformance.with_django",
    }
    command = [sys.executable, "-m", "django", "migrate", "--verbosity", "0"]
    subprocess.run(command, env={**os.environ, **env}, cwd=ROOT, check=True)
    return env


def _row_in(database: str) -> Callable[[str], Mapping[str, Any]]:
    def row(task_id: str) -> Mapping[str, Any]:
        columns = "status, result, task_args AS args, task_kwargs AS kwargs, task_name AS name"
        with sqlite3.connect(database) as connection:
            connection.row_factory = sqlite3.Row
            query = f"SELECT {columns} FROM django_celery_results_taskresult WHERE task_id = ?"
            found = connection.execute(query, (task_id,)).fetchone()
        return dict(found) if found else {}

    return row
