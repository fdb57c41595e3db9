"""docs/windows-producers.md: a program that publishes needs no fork and no Unix signal.

These tests imitate a Windows machine: they take away what Python has on Unix only, before the import.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT

#: Celery imports on Windows, so it is imported before the names that Windows lacks are taken away.
LIKE_WINDOWS = """
import billiard.pool, celery, celery.worker.request, kombu.transport.redis, redis.cluster, redis.sentinel
import os, select, signal, socket, sys, time

names = {
    os: "fork forkpty register_at_fork waitid WNOHANG WEXITED WNOWAIT killpg setsid getuid uname".split(),
    select: "poll epoll".split(),
    signal: [name for name in dir(signal) if name.startswith("SIG") and name not in ("SIGINT", "SIGTERM",
             "SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV", "SIG_DFL", "SIG_IGN")]
             + "pthread_kill setitimer alarm".split(),
    socket: ["AF_UNIX"],
    time: ["clock_gettime"] + [name for name in dir(time) if name.startswith("CLOCK_")],
}
for module, found in names.items():
    for name in found:
        delattr(module, name)
sys.modules.update(dict.fromkeys(("fcntl", "resource", "pwd", "grp", "termios")))

url = sys.argv[1]
app = celery.Celery("producer", broker=url, backend=url, set_as_current=True)
"""

TASKS = """
from celery_rlock import LockedTask, RLock

@app.task(base=LockedTask, name="charge", lock_key="account:{account}")
def charge(account):
    return account

@app.task(base=LockedTask, name="report", lock_from="publish")
def report():
    return None
"""


@pytest.fixture
def run(server):
    def run(code):
        command = [sys.executable, "-c", LIKE_WINDOWS + code, server.url]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return run


def test_a_producer_publishes_by_name(run):
    assert run('print(app.send_task("charge", (7,)).id)')


def test_a_producer_publishes_with_options_for_one_call(run, client):
    [task_id] = run(TASKS + 'print(charge.apply_async((7,), lock_busy="skip").id)')
    [message] = [json.loads(raw) for raw in client.lrange("celery", 0, -1)]
    assert message["headers"]["id"] == task_id
    assert message["headers"]["rlock_options"] == {"busy": "skip"}


def test_a_producer_publishes_a_unique_task_once(run, client):
    first, second = run(TASKS + "print(report.delay().id, report.delay().id)")
    assert first == second
    assert client.llen("celery") == 1


def test_a_producer_takes_the_lock_itself(run):
    code = """
with RLock("k") as lock:
    print(lock.held, RLock("k").acquire(blocking=False))
    RLock("k").release()
print(charge(7))
"""
    assert run(TASKS + code) == ["True", "True", "7"]


def test_a_lost_lock_is_told_without_a_signal_to_raise_it_with(run):
    """`lock_lost="abort"` raises at the next line of Python, as in the threads pool."""
    code = """
import redis
from celery_rlock import LockLost

@app.task(base=LockedTask, lock_key="lost", lock_lost="abort", lock_ttl=0.5)
def work():
    redis.Redis.from_url(url).delete("rlock:{lost}")
    end = time.monotonic() + 30
    while time.monotonic() < end:
        time.sleep(0.01)

try:
    work()
except LockLost:
    print("lost")
"""
    assert run(TASKS + code) == ["lost"]
