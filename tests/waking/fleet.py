"""What the waking tests look at: the waiters in Redis, and the workers they lie in."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter

from celery import states

from celery_rlock.core.client import connect
from celery_rlock.core.lock import RLock
from celery_rlock.core.scripts import Scripts
from tests.faults.fleet import Sent
from tests.support.processes import wait_until

PROJ = "tests.waking.proj"
QUEUE = "waking"

#: Far below the backoff of a minute, far above what a busy machine takes to wake a waiter.
SOON = 20.0
BACKOFF = 60.0
LONG_LEASE = 120.0


class Waiters:
    """Those who wait for a lock, as they stand on its server."""

    def __init__(self, server):
        self.client = server.client(decode_responses=True)

    def __call__(self, name):
        return self.client.zrange(_waiters(name), 0, -1)

    def kept_for(self, name):
        """In seconds, how long their places are kept unless somebody asks again."""
        return self.client.pttl(_waiters(name)) / 1000

    def put_in_front(self, name, places):
        self.client.zadd(_waiters(name), dict.fromkeys(places, 0))

    def lose(self, name):
        self.client.delete(_waiters(name))

    def await_count(self, name, count, timeout=SOON):
        wait_until(lambda: len(self(name)) == count, timeout=timeout, what=f"{count} to wait for {name}")

    def await_again(self, name, sent, before):
        """All these tasks have new places. One that was delivered twice may have two."""

        def all_wait():
            ids = {place.rpartition(":")[2] for place in set(self(name)) - before}
            return ids == {task.id for task in sent}

        wait_until(all_wait, timeout=2 * SOON, what=f"all to wait for {name} again")


def _waiters(name):
    return f"rlock:{{{name}}}:waiters"


def holder(server):
    """Makes locks that are held from this process, as other owners."""
    scripts = Scripts(connect(server.url))
    return lambda name, ttl=LONG_LEASE: RLock(name, scripts=scripts, ttl=ttl)


def sender(client, backend):
    """Publishes a task of `proj` by its name."""

    def send(task, *args, queue=QUEUE, **options):
        return Sent(backend, client.send_task(f"{PROJ}.{task}", args, queue=queue, **options).id)

    return send


def await_busy(sent):
    """It has found the lock busy, and is about to wait."""
    wait_until(lambda: sent.state == states.RETRY, timeout=SOON, what="it to find the lock busy", every=0)


def kill(worker):
    """SIGKILL to all its processes at once: nobody releases, leaves or tells anything."""
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def deliveries(fleet):
    """How often each task id was received."""
    return Counter(re.findall(r"\[([\w-]+)\] received", "".join(worker.log for worker in fleet)))


def inspect(client, fleet, what):
    """The workers' answers, by their nodename."""
    names = [worker.nodename for worker in fleet]

    def answers():
        found = getattr(client.control.inspect(destination=names, timeout=5, limit=len(names)), what)()
        return found if found and len(found) == len(names) else None

    return wait_until(answers, timeout=2 * SOON, what=f"{what} of {names}")


def await_rest(client, fleet):
    """Nothing runs, nothing is about to."""

    def at_rest():
        return not any(
            tasks for what in ("active", "reserved") for tasks in inspect(client, fleet, what).values()
        )

    wait_until(at_rest, timeout=2 * SOON, what="the fleet to be at rest", every=0.1)
