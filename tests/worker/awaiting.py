"""What the worker tests wait for: states, log lines, and the waiters of a lock as Redis has them."""

from __future__ import annotations

import os
import signal

from celery import states

from tests.support.fleet import inspect
from tests.support.processes import wait_until

#: The module whose tasks wait to be woken.
WAITING = "tests.worker.proj.waiting"

#: Far below the backoff of a minute, far above what a busy machine takes to wake a waiter.
SOON = 20.0


class Waiters:
    """Call it with a key for the places of its waiters, first come first."""

    def __init__(self, server):
        self.client = server.client(decode_responses=True)

    def __call__(self, name):
        return self.client.zrange(_waiters(name), 0, -1)

    def kept_for(self, name):
        """In seconds, how long the places are kept unless a waiter asks again."""
        return self.client.pttl(_waiters(name)) / 1000

    def put_in_front(self, name, places):
        """Add places that are before all others."""
        self.client.zadd(_waiters(name), dict.fromkeys(places, 0))

    def lose(self, name):
        """Delete all places, as an eviction would."""
        self.client.delete(_waiters(name))

    def await_count(self, name, count, timeout=SOON):
        wait_until(lambda: len(self(name)) == count, timeout=timeout, what=f"{count} waiters of {name}")

    def await_again(self, name, sent, before):
        """Return when all these tasks have new places. A task that was delivered twice may have two."""

        def all_wait():
            ids = {place.rpartition(":")[2] for place in set(self(name)) - before}
            return ids == {task.id for task in sent}

        wait_until(all_wait, timeout=2 * SOON, what=f"all to wait for {name} again")


def lock(key):
    """The name of a key's lock in Redis."""
    return f"rlock:{{{key}}}"


def _waiters(name):
    return f"{lock(name)}:waiters"


def await_busy(sent):
    """Return when the task has found the lock busy and is about to wait."""
    wait_until(
        lambda: sent.state == states.RETRY, timeout=SOON, what="the task to find the lock busy", every=0
    )


def await_state(result, state):
    wait_until(lambda: result.state == state, timeout=SOON, what=f"state {state}")


def await_log(fleet, text, timeout=SOON):
    """Return when the log of one of these workers has the text."""
    wait_until(lambda: any(text in worker.log for worker in fleet), timeout=timeout, what=f"the log {text!r}")


def kill_child(app, fleet, pid):
    """SIGKILL to a pool process, when its worker knows that it runs a task."""

    def is_known():
        answers = inspect(app, fleet, "active").values()
        return pid in {entry["worker_pid"] for tasks in answers for entry in tasks}

    wait_until(is_known, timeout=SOON, what="the worker to know of the run")
    os.kill(pid, signal.SIGKILL)


def revoke(app, fleet, *results):
    """Revoke the tasks, and return when each of these workers knows."""
    names = [worker.nodename for worker in fleet]
    ids = [result.id for result in results]
    options = {"destination": names, "reply": True, "timeout": 5, "limit": len(names)}
    wait_until(
        lambda: len(app.control.revoke(ids, **options)) == len(names),
        timeout=SOON,
        what="every worker to know that the tasks are revoked",
    )
