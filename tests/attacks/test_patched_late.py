"""gevent or eventlet patch the standard library after celery_rlock was imported."""

from __future__ import annotations

import importlib.util

import pytest

from tests.attacks.attack import run_code

PATCH = {
    "gevent": "from gevent import monkey, spawn; monkey.patch_all()",
    "eventlet": "import eventlet; from eventlet import spawn; eventlet.monkey_patch()",
}

LATE = """
import sys, time
import celery_rlock
from celery import Celery
{before}
{patch}
import threading
from celery_rlock import RLock
app = Celery("late", broker="memory://")
app.conf.rlock_url = sys.argv[1]
app.set_default()
done = []
with RLock("k", ttl=1.5) as lock:
    with RLock("k"):
        pass
    print("entered", flush=True)
    def wait():
        with RLock("k", ttl=1.5):
            done.append(True)
    crowd = [threading.Thread(target=wait, daemon=True) for _ in range(5)]
    [thread.start() for thread in crowd]
    time.sleep(3)
    assert lock.owned(), "not renewed"
    assert not done
[thread.join(20) for thread in crowd]
assert len(done) == 5, done
print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "before", ["", "from celery_rlock import RLock, LockedTask"], ids=["import", "names"]
)
@pytest.mark.parametrize("library", PATCH)
def test_the_first_acquire_after_a_late_patch_does_not_hang(server, library, before):
    """Point 17: threads, locks and events are made when they are first used."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    output = run_code(LATE.format(before=before, patch=PATCH[library]), server.url, timeout=40)
    assert output.split() == ["entered", "done"]
