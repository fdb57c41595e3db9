"""Exceptions that a signal raises at any moment: soft time limits, Ctrl-C, alarms."""

from __future__ import annotations

import json
import random

import pytest
from celery import Celery

from tests.attacks.attack import Locks, run_script, taken_by_another
from tests.attacks.interrupted import LEAST, SCENARIOS
from tests.support.processes import wait_until
from tests.support.workers import Worker


@pytest.mark.parametrize("seconds", [4, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_signal_at_any_moment_leaves_nothing_behind(server, locks, scenario, seconds):
    """Point 4: no locked mutex, no reply of another request, no lock that stays for its lease."""
    with locks("held", ttl=300):
        output = run_script("interrupted", server.url, scenario, seconds, timeout=seconds + 90)
    report = json.loads(output.splitlines()[-1])
    print(report)
    assert (report["stuck"], report["wrong"]) == ([], []), report
    assert report["signals"] >= LEAST, report


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_soft_time_limits_in_a_real_worker(own_server, tmp_path):
    """Point 4: tasks with a limit of a few milliseconds, around locks that others want too."""
    app = Celery("publisher", broker=own_server.url, backend=own_server.url, set_as_current=False)
    client, keys = own_server.client(), [f"limited-{number}" for number in range(6)]
    env = {"RLOCK_ATTACKED": own_server.url, "RLOCK_ATTACKED_FILES": str(tmp_path)}
    with Worker.start("tests.attacks.proj:app", concurrency=4, env=env) as worker:

        def all_answered():
            """Whether each child has run one of these short tasks, so none of them hangs."""
            asked = [app.send_task("tests.attacks.proj.pid") for _ in range(8)]
            answered.update(result.get(timeout=30) for result in asked)
            return answered >= set(worker.children())

        answered = set()
        for _ in range(1000):
            limit = random.uniform(0.001, 0.02)
            app.send_task("tests.attacks.proj.limited", (random.choice(keys), 0.005), soft_time_limit=limit)
        # Not the results: Celery loses the result of a task whose limit hits while it stores that.
        # Not the active tasks: after so many limits, Celery sometimes lists one that no child runs.
        wait_until(lambda: client.llen("celery") == 0, timeout=150, every=0.2, what="an empty queue")
        wait_until(all_answered, timeout=60, what="an answer of each child")
        locks = Locks(own_server.url)
        for key in keys:
            wait_until(lambda key=key: taken_by_another(locks(key)), timeout=20, what=f"{key} to be free")
        # The children still take every lock.
        later = [app.send_task("tests.attacks.proj.limited", (key, 0.05)) for key in keys]
        assert [result.get(timeout=30) for result in later] == [None] * len(later)
        answered.clear()
        wait_until(all_answered, timeout=60, what="an answer of each child after that")
    assert "two runs at once" not in worker.log
    assert "SoftTimeLimitExceeded" in worker.log
