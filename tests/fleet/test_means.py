"""The means of the fleet's tests leave nothing behind, also when a test process was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.fleet import memory, network
from tests.support.daemon import ROOT

SESSION = """
import time
from tests.fleet.{module} import {name}
means = {name}({arguments})
print("made", flush=True)
time.sleep(60)
"""


@pytest.fixture
def killed():
    """Has another test process make something, and kills it; its pid."""

    def run(module, name, arguments=""):
        code = SESSION.format(module=module, name=name, arguments=arguments)
        with subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as session:
            assert session.stdout.readline() == "made\n"
            session.send_signal(signal.SIGKILL)
        return session.pid

    return run


@pytest.mark.skipif(not network.Network.available(), reason="only root on Linux can make a network")
def test_a_network_that_a_killed_test_process_left_is_removed_by_the_next(killed):
    left = f"{network.PREFIX}-{killed('network', 'Network')}"
    assert left in network._ip("netns", "list")
    with network.Network() as ours:
        assert left not in network._ip("netns", "list")
        assert ours.name in network._ip("netns", "list")
    assert ours.name not in network._ip("netns", "list")
    assert ours.cable not in network._ip("link", "show")


@pytest.mark.skipif(not memory.MemoryLimit.available(), reason="no cgroup with a memory limit here")
def test_a_memory_limit_that_a_killed_test_process_left_is_removed_by_the_next(killed):
    pid = killed("memory", "MemoryLimit", "1 << 30")
    folder, _ = memory._home()
    assert (folder / f"{memory.PREFIX}-{pid}").exists()
    with memory.MemoryLimit(1 << 30):
        assert not (folder / f"{memory.PREFIX}-{pid}").exists()
    assert not (folder / f"{memory.PREFIX}-{os.getpid()}").exists()
