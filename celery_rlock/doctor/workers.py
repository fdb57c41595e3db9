"""The broker, and the workers that answer through it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from celery_rlock.checks.finding import Finding, NotChecked, error, named, ok, warn
from celery_rlock.checks.setup import Setup
from celery_rlock.core.url import hide_password

#: With RabbitMQ two workers of one name may share the queue of what they are asked: one of them answers.
_ASK_RABBITMQ = 4
_DECISIVE = ("rlock_prefix", "rlock_enabled")
_ADDRESSES = ("rlock_url", "rlock_client")
_FALLBACKS = ("result_backend", "broker_url")


def look_at_broker(setup: Setup) -> Iterator[Finding]:
    trouble = setup.broker_trouble
    connection = setup.app.connection_for_write()
    where = connection.as_uri() if connection.password else connection.as_uri().replace(":**@", "")
    if trouble is None:
        yield ok(f"{where} answers")
    else:
        yield error(
            f"{where} does not answer: {type(trouble).__name__}: {trouble}",
            "start the broker, let this host reach it, or correct broker_url",
        )


def look_at_workers(setup: Setup) -> Iterator[Finding]:
    """Whether any answer, and each under a name of its own."""
    pids: dict[str, set[int]] = defaultdict(set)
    most: dict[str, int] = defaultdict(int)
    for _ in range(_ASK_RABBITMQ if setup.broker == "amqp" else 1):
        answers: dict[str, list[int]] = defaultdict(list)
        for name, stats in setup.ask("stats"):
            answers[name].append(stats.get("pid", 0))
        for name, those in answers.items():
            pids[name].update(those)
            most[name] = max(most[name], len(those))
    twice = [name for name in pids if most[name] > 1 or len(pids[name]) > 1]
    if twice:
        yield error(
            f"more than one worker is called {named(twice)}: nobody can tell who holds a lock, and one of "
            "them is taken for the other when it is asked or restarted",
            "give each worker a name of its own: celery worker -n NAME@%h, another NAME for each on a host",
        )
    if not pids:
        yield warn(
            f"no worker answers within {setup.timeout:g} s",
            "start one; if they are only slow, give --timeout",
        )
    elif not twice:
        yield ok(f"{len(pids)} answered, each under a name of its own")


def look_at_agreement(setup: Setup) -> Iterator[Finding]:
    """Workers that look for the locks elsewhere exclude nobody."""
    here, answers = _decisions(setup.app.conf.table()), setup.ask("conf")
    if not answers:
        raise NotChecked("no worker answers")
    differing: dict[str, list[str]] = defaultdict(list)
    for worker, conf in answers:
        there = _decisions(conf)
        for name in sorted(here.keys() | there.keys()):
            if there.get(name) != here.get(name):
                differing[name].append(worker)
    for name, workers in differing.items():
        what = f"{name} of {named(workers)} is not what it is here"
        todo = f"give all workers and publishers the same {name}"
        yield (
            error(what, todo)
            if name in _DECISIVE
            else warn(f"{what} ({_shown(here.get(name))})", f"{todo}, unless both lead to the same server")
        )


def _decisions(conf: Mapping[str, Any]) -> dict[str, str]:
    """What decides where a worker looks for its locks."""
    chosen = {_name(key): str(value) for key, value in conf.items() if value is not None}
    addresses = [name for name in _ADDRESSES if name in chosen] or _FALLBACKS
    wanted = [name for name in (*_DECISIVE, *addresses) if name in chosen]
    return {name: chosen[name].partition(" at 0x")[0] for name in wanted}


def _name(key: str) -> str:
    """CELERY_RLOCK_URL, as a settings module with a namespace has it, is rlock_url."""
    return key.lower().removeprefix("celery_")


def _shown(value: str | None) -> str:
    return "not set" if value is None else hide_password(value)
