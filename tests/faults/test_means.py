"""The means of the fault tests: a broker that leaves nothing behind, and a witness that sees overlaps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.support.daemon import ROOT
from tests.support.processes import alive, wait_until
from tests.support.rabbit import Rabbit

SESSION = """
import time
from tests.support.rabbit import Rabbit
node = Rabbit()
node.launch()
print(node.pid, flush=True)
node.await_ready()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not Rabbit.available(), reason="no RabbitMQ on this machine")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_test_process_leaves_no_rabbitmq(tmp_path):
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # it cannot remove its directory
    with subprocess.Popen(
        [sys.executable, "-c", SESSION], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
    ) as session:
        node = int(session.stdout.readline())
        assert session.stdout.readline() == "ready\n"
        family = psutil.Process(session.pid).children(recursive=True)
        assert node in [process.pid for process in family]
        assert any("epmd" in process.name() for process in family)
        session.send_signal(signal.SIGKILL)
        wait_until(lambda: not any(map(alive, family)), what="the end of the node and its epmd")


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_the_witness_sees_an_overlap(start_fleet, send, queue, name, records, count, store):
    """A lock that is taken away from a run that is alive: its successor is caught."""
    with start_fleet(1, concurrency=2, queues=[queue]):
        victim = send("victim", name, queue=queue)
        wait_until(lambda: count(name, "start"), timeout=20, what="the victim to run")
        store.delete(f"rlock:{{{name}}}")
        successor = send("work", name, queue=queue)
        wait_until(lambda: count(name, "overlap"), timeout=20, what="the overlap")
        assert count(name, "overlap") == {successor.id: 1}
        assert count(name, "start") == {victim.id: 1}
