"""A test process that is killed leaves nothing behind: no RabbitMQ, no network, no memory limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.faults.kubernetes import memory, network
from tests.support.daemon import ROOT
from tests.support.processes import alive, wait_until
from tests.support.rabbit import Rabbit

RABBIT = """
from tests.support.rabbit import Rabbit
node = Rabbit()
node.launch()
print(node.pid, flush=True)
node.await_ready()
"""
NETWORK = """
from tests.faults.kubernetes.network import Network
network = Network()
"""
MEMORY_LIMIT = """
from tests.faults.kubernetes.memory import MemoryLimit
limit = MemoryLimit(1 << 30)
"""
READY = """
import time
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def start_session(tmp_path):
    """Starts another test process that runs this code."""
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # a killed process cannot remove its own directories
    sessions = []

    def start(code):
        command = [sys.executable, "-c", code + READY]
        session = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
        sessions.append(session)
        return session

    yield start
    for session in sessions:
        session.kill()
        session.communicate()


@pytest.fixture
def killed_session(start_session):
    """Starts another test process that runs this code, and kills it; returns its pid."""

    def run(code):
        session = start_session(code)
        assert session.stdout.readline() == "ready\n"
        session.kill()
        session.wait()
        return session.pid

    return run


@pytest.mark.slow
@pytest.mark.skipif(not Rabbit.available(), reason="no RabbitMQ on this machine")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_test_process_leaves_no_rabbitmq(start_session):
    session = start_session(RABBIT)
    node = int(session.stdout.readline())
    assert session.stdout.readline() == "ready\n"
    family = psutil.Process(session.pid).children(recursive=True)
    assert node in [process.pid for process in family]
    assert any("epmd" in process.name() for process in family)
    session.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(alive, family)), what="the end of the node and its epmd")


@pytest.mark.skipif(not network.Network.available(), reason="only root on Linux can create a network")
def test_the_next_test_process_removes_the_network_of_a_killed_one(killed_session):
    left = f"{network.PREFIX}-{killed_session(NETWORK)}"
    assert left in network.names()
    with network.Network() as ours:
        assert left not in network.names()
        assert ours.name in network.names()
    assert ours.name not in network.names()
    assert ours.cable not in network.cables()


@pytest.mark.skipif(not memory.MemoryLimit.available(), reason="no cgroup with a memory limit here")
def test_the_next_test_process_removes_the_memory_limit_of_a_killed_one(killed_session):
    left = f"{memory.PREFIX}-{killed_session(MEMORY_LIMIT)}"
    assert left in memory.names()
    with memory.MemoryLimit(1 << 30) as ours:
        assert left not in memory.names()
        assert ours.name in memory.names()
    assert ours.name not in memory.names()
