"""Whether the lock works on its server, and how fast: on a private key, which is gone afterwards."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from celery_rlock.checks.finding import Finding, error, ok, warn
from celery_rlock.checks.primary import Primary, each_primary
from celery_rlock.checks.setup import Setup
from celery_rlock.core.cluster import FAILURES
from celery_rlock.core.execution import new_delivery
from celery_rlock.core.name import Name, Owner
from celery_rlock.core.replies import Busy, Place, Taken
from celery_rlock.core.scripts import Scripts, text
from celery_rlock.errors import RLockError

_LEASE = 5.0
_CYCLES = 50
_SLOW_MS = 20.0
_TO_HEAR = 2.0
_REPAIR = (
    "see what the checks connection, rights and role say; a proxy between worker and Redis must know Lua "
    "scripts and pub/sub"
)


@each_primary
def look_at_scripts(primary: Primary, setup: Setup) -> Iterator[Finding]:
    """Take it, enter it again, be refused, renew, wait, release, be woken."""
    try:
        with _cleaning(primary):
            wrong = list(_wrong_answers(setup.scripts, primary))
    except (RLockError, *FAILURES) as failure:
        yield error(f"the scripts do not run: {failure}", _REPAIR)
        return
    for what in wrong:
        yield error(what, _REPAIR)
    if not wrong:
        yield ok("taken, entered again, refused to others, renewed, released, a waiter woken")


def _wrong_answers(scripts: Scripts, primary: Primary) -> Iterator[str]:
    probe, owner, other = primary.probe, _owner(), _owner()
    with primary.client.pubsub() as pubsub:
        pubsub.subscribe(scripts.channels + other.delivery)
        pubsub.get_message(timeout=_TO_HEAR)
        taken = scripts.acquire(probe, owner, 1, _LEASE, "doctor")
        again = scripts.acquire(probe, owner, 2, _LEASE, "doctor")
        refused = scripts.acquire(probe, other, 1, _LEASE, "doctor")
        place = Place(probe, f"{other.delivery}:{other.field}", "", _LEASE)
        [renewed] = _given(scripts.renew([(probe, owner, _LEASE)]))
        [_] = _given(scripts.wait([place]))
        released = scripts.release(probe, owner, 0)
        heard = pubsub.get_message(timeout=_TO_HEAR)
    if not isinstance(taken, Taken) or again != taken:
        yield f"a free lock was not taken and entered again: {taken}, {again}"
    if not isinstance(refused, Busy):
        yield f"a lock that is held was given to somebody else: {refused}"
    if renewed is False or released != 1:
        yield "a lock that is held could not be renewed and released"
    if heard is None or not text(heard["data"]).startswith("turn "):
        yield "a waiter was not told that its turn had come"


def _given(answers: Iterable[Any]) -> Iterator[Any]:
    """Those that are no errors; one that is, is raised."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
        yield answer


@each_primary
def look_at_latency(primary: Primary, setup: Setup) -> Iterator[Finding]:
    """How long one acquire or release takes, from here."""
    with _cleaning(primary):
        took = sorted(_took(setup.scripts, primary.probe))
    p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100 - 1]
    measured = f"an acquire or release takes {p50:.2f} ms (p50), {p99:.2f} ms (p99)"
    lease_ms = 1000 * min((one.options.ttl for one in setup.tasks), default=30.0)
    if p99 > lease_ms / 10:
        yield warn(
            f"{measured}; the shortest lease is {lease_ms / 1000:g} s, and is renewed every third of it",
            "move the lock's server nearer to the workers, find what makes it slow (SLOWLOG GET), or raise "
            "lock_ttl",
        )
    elif p50 > _SLOW_MS:
        yield warn(
            f"{measured}; each task pays for two of them", "move the lock's server nearer to the workers"
        )
    else:
        yield ok(measured)


def _took(scripts: Scripts, probe: Name) -> Iterable[float]:
    """Milliseconds, of each."""
    owner = _owner()
    for _ in range(_CYCLES):
        started = time.perf_counter()
        scripts.acquire(probe, owner, 1, _LEASE, "doctor")
        acquired = time.perf_counter()
        scripts.release(probe, owner, 0)
        yield from (1000 * (acquired - started), 1000 * (time.perf_counter() - acquired))


def _owner() -> Owner:
    return Owner(f"doctor-{os.getpid()}@{socket.gethostname()}", new_delivery(), "doctor")


@contextmanager
def _cleaning(primary: Primary) -> Iterator[Any]:
    try:
        yield
    finally:
        primary.clean()
