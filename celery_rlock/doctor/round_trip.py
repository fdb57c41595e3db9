"""Checks whether the lock works on its server, and how fast, with a key that is deleted afterwards."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from celery_rlock.doctor.findings import Finding, error, ok, warn
from celery_rlock.doctor.primary import Primary
from celery_rlock.doctor.setup import Setup, each_primary
from celery_rlock.errors import RLockError
from celery_rlock.server.failures import FAILURES
from celery_rlock.server.lock_server import RedisLockServer, Renewal
from celery_rlock.server.owner import Owner, new_delivery
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.server.replies import Busy, Place, Release, ReleaseReply, Taken, text

_LEASE = 5.0
_CYCLES = 50
_SLOW_MS = 20.0
_MESSAGE_WITHIN = 2.0
_REPAIR = (
    "see the checks connection, rights and role; a proxy between the workers and Redis must support Lua "
    "scripts and pub/sub"
)


@each_primary
def check_scripts(primary: Primary, setup: Setup) -> Iterator[Finding]:
    """Take a lock, enter it again, ask for it as another owner, renew, wait, release, and wake the waiter."""
    try:
        with _cleaning(primary):
            wrong = [
                *_wrong_answers(setup.lock_server, primary),
                *_wrong_places(setup.lock_server, primary),
            ]
    except (RLockError, *FAILURES) as failure:
        yield error(f"the scripts do not run: {failure}", _REPAIR)
        return
    for what in wrong:
        yield error(what, _REPAIR)
    if not wrong:
        yield ok(
            "taken, entered again, refused to another owner, renewed, released, waiter woken, places counted"
        )


def _wrong_answers(lock_server: RedisLockServer, primary: Primary) -> Iterator[str]:
    probe, owner, other = primary.probe, _owner(), _owner()
    with primary.client.pubsub() as pubsub:
        pubsub.subscribe(lock_server.channels + other.delivery)
        pubsub.get_message(timeout=_MESSAGE_WITHIN)
        taken = lock_server.acquire(probe, owner, 1, _LEASE, "doctor")
        again = lock_server.acquire(probe, owner, 2, _LEASE, "doctor")
        refused = lock_server.acquire(probe, other, 1, _LEASE, "doctor")
        place = Place(probe, f"{other.delivery}:{other.field}", 0, _LEASE)
        token = taken.token if isinstance(taken, Taken) else 0
        [renewed] = _without_errors(lock_server.renew([Renewal(probe, owner, token, _LEASE)]))
        [_] = _without_errors(lock_server.wait([place]))
        released = lock_server.release(probe, owner, Release())
        message = pubsub.get_message(timeout=_MESSAGE_WITHIN)
    if not isinstance(taken, Taken) or again != taken:
        yield f"a free lock could not be taken and entered again: {taken}, {again}"
    if not isinstance(refused, Busy):
        yield f"a lock that is held was given to another owner: {refused}"
    if renewed is False or released != ReleaseReply.RELEASED:
        yield "a lock that is held could not be renewed and released"
    if message is None or not text(message["data"]).startswith("turn "):
        yield "the release did not wake the waiter"


def _wrong_places(lock_server: RedisLockServer, primary: Primary) -> Iterator[str]:
    """A key with two places: two owners enter, and a third does not."""
    primary.clean()  # it may still be the turn of the waiter
    probe, owners = primary.probe, [_owner() for _ in range(3)]
    replies = [lock_server.acquire(probe, owner, 1, _LEASE, "", limit=2) for owner in owners]
    slots = [reply.slot for reply in replies if isinstance(reply, Taken)]
    released = [lock_server.release(probe, owner, Release()) for owner in owners[:2]]
    if slots != [0, 1] or released != [ReleaseReply.RELEASED] * 2:
        yield f"a key with two places was not given to two owners: {replies}"


def _without_errors(answers: Iterable[Any]) -> Iterator[Any]:
    """The same answers; the first that is an error is raised."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
        yield answer


@each_primary
def check_latency(primary: Primary, setup: Setup) -> Iterator[Finding]:
    """How long one acquire or release takes from this host."""
    with _cleaning(primary):
        took = sorted(_times(setup.lock_server, primary.probe))
    p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100 - 1]
    measured = f"an acquire or release takes {p50:.2f} ms (p50), {p99:.2f} ms (p99)"
    lease_ms = 1000 * min((locked.options.ttl for locked in setup.tasks), default=30.0)
    if p99 > lease_ms / 10:
        yield warn(
            f"{measured}; the shortest lease is {lease_ms / 1000:g} s, and it is renewed every third of that",
            "move the lock server nearer to the workers, find what makes it slow (SLOWLOG GET), or raise "
            "lock_ttl",
        )
    elif p50 > _SLOW_MS:
        yield warn(f"{measured}; each task needs one of each", "move the lock server nearer to the workers")
    else:
        yield ok(measured)


def _times(lock_server: RedisLockServer, probe: RedisKeys) -> Iterable[float]:
    """The milliseconds of each acquire and each release."""
    owner = _owner()
    for _ in range(_CYCLES):
        started = time.perf_counter()
        lock_server.acquire(probe, owner, 1, _LEASE, "doctor")
        acquired = time.perf_counter()
        lock_server.release(probe, owner, Release())
        yield from (1000 * (acquired - started), 1000 * (time.perf_counter() - acquired))


def _owner() -> Owner:
    return Owner(f"doctor-{os.getpid()}@{socket.gethostname()}", new_delivery(), "doctor")


@contextmanager
def _cleaning(primary: Primary) -> Iterator[None]:
    try:
        yield
    finally:
        primary.clean()
