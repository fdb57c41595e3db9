"""Checks of the broker, and of the workers that answer through it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from celery_rlock.doctor.findings import CouldNotLook, Finding, error, named, ok, warn
from celery_rlock.doctor.setup import Setup
from celery_rlock.server.url import hide_password

#: On RabbitMQ, two workers of the same name may share one control queue, so only one answers each question.
_QUESTIONS_ON_RABBITMQ = 4

#: A worker with another value than this app takes other locks, for certain.
_DECISIVE = ("rlock_prefix", "rlock_enabled")
_ADDRESSES = ("rlock_url", "rlock_client")
_FALLBACKS = ("result_backend", "broker_url")


def check_broker(setup: Setup) -> Iterator[Finding]:
    failure = setup.broker_error
    connection = setup.app.connection_for_write()
    where = connection.as_uri() if connection.password else connection.as_uri().replace(":**@", "")
    if failure is None:
        yield ok(f"{where} answers")
    else:
        yield error(
            f"{where} does not answer: {type(failure).__name__}: {failure}",
            "start the broker, open the network path to it, or correct broker_url",
        )


def check_workers(setup: Setup) -> Iterator[Finding]:
    """Whether any worker answers, and whether each has a name of its own."""
    pids: dict[str, set[int]] = defaultdict(set)
    most: dict[str, int] = defaultdict(int)
    for _ in range(_QUESTIONS_ON_RABBITMQ if setup.broker == "amqp" else 1):
        answers: dict[str, list[int]] = defaultdict(list)
        for name, stats in setup.ask("stats"):
            answers[name].append(stats.get("pid", 0))
        for name, answered in answers.items():
            pids[name].update(answered)
            most[name] = max(most[name], len(answered))
    twice = [name for name in pids if most[name] > 1 or len(pids[name]) > 1]
    if twice:
        yield error(
            f"more than one worker is called {named(twice)}: a lock's owner does not say which of them holds "
            "it, and remote control cannot address one alone",
            "give each worker a name of its own: celery worker -n NAME@%h, with another NAME for each worker "
            "of a host",
        )
    if not pids:
        yield warn(
            f"no worker answers within {setup.timeout:g} s",
            "start a worker; if the workers are only slow, raise --timeout",
        )
    elif not twice:
        yield ok(f"{len(pids)} answered, each under a name of its own")


def check_agreement(setup: Setup) -> Iterator[Finding]:
    """Whether the workers use the same lock server and prefix as this app."""
    here, answers = _decisions(setup.app.conf.table()), setup.ask("conf")
    told = [(worker, conf) for worker, conf in answers if isinstance(conf, dict) and "error" not in conf]
    silent = [worker for worker, _ in answers if worker not in dict(told)]
    if not answers:
        raise CouldNotLook(f"no worker answers within {setup.timeout:g} s", "see the check workers")
    if silent:
        yield warn(
            f"{named(silent)} did not tell its settings, so they are not compared",
            "see the worker's log; `celery inspect conf` asks the same",
            at_start=False,
        )
    differing: dict[str, list[str]] = defaultdict(list)
    for worker, conf in told:
        there = _decisions(conf)
        for name in sorted(here.keys() | there.keys()):
            if there.get(name) != here.get(name):
                differing[name].append(worker)
    for name, workers in differing.items():
        what = f"{name} of {named(workers)} differs from this app's"
        todo = f"give all workers and publishers the same {name}"
        yield (
            error(what, todo)
            if name in _DECISIVE
            else warn(f"{what} ({_shown(here.get(name))})", f"{todo}, unless both lead to the same server")
        )
    if not differing and told:
        yield ok(f"all that answered ({len(told)}) use the same lock server and prefix as this app")


def _decisions(conf: Mapping[str, Any]) -> dict[str, str]:
    """The settings that decide where a worker keeps its locks."""
    chosen = {_name(key): str(value) for key, value in conf.items() if value is not None}
    addresses = [name for name in _ADDRESSES if name in chosen] or _FALLBACKS
    wanted = [name for name in (*_DECISIVE, *addresses) if name in chosen]
    return {name: chosen[name].partition(" at 0x")[0] for name in wanted}


def _name(key: str) -> str:
    """`rlock_url` for CELERY_RLOCK_URL, as a settings module with a namespace spells it."""
    return key.lower().removeprefix("celery_")


def _shown(value: str | None) -> str:
    return "not set" if value is None else hide_password(value)
