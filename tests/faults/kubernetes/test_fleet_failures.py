"""A fleet under load meets failures: a child out of memory, a killed container, a pod that is cut off."""

from __future__ import annotations

import os
import signal
import time
from contextlib import nullcontext

import pytest

from tests.faults.kubernetes.memory import MemoryLimit
from tests.faults.kubernetes.network import Network
from tests.faults.kubernetes.pod_fleet import CONCURRENCY
from tests.support.processes import wait_until
from tests.support.proxy import Proxy

PODS = 3
TTL = 3
LIMIT_MB, NEEDED_MB = 400, 600
# A key of the long runs must be free about half of the time. Otherwise its line grows while tasks are
# published, and a task that comes back stands at the end of it.
LONG = {"long": 5, "one_long_in": 60}
pytestmark = [pytest.mark.timeout(180), pytest.mark.parametrize("broker", ["redis"], indirect=True)]


@pytest.fixture(scope="module")
def network():
    """The network of the pod that is cut off; None where this process may not create one."""
    with Network() if Network.available() else nullcontext() as network:
        yield network


@pytest.fixture(scope="module")
def addresses(network):
    return () if network is None else (network.host,)


def runs_of(load, task_id):
    return [entry for entry in load.entries("start") if entry["id"] == task_id]


def long_run_on(load, pods):
    """A long run on one of these pods that has not ended yet."""
    over = {entry["id"] for entry in load.entries("end")}
    names = {pod.nodename for pod in pods}
    starts = [entry for entry in load.entries("start") if entry["id"] not in over and entry["pod"] in names]
    return next((entry for entry in starts if entry["key"] in load.long_keys), None)


def test_a_task_whose_child_ran_out_of_memory_runs_again(fleet, check):
    """Semantics 6: the kernel kills a process that takes too much; its lock is free before the lease ends."""
    limited = MemoryLimit.available()
    others = fleet.deployment.create(PODS - 1)
    with MemoryLimit(LIMIT_MB << 20) if limited else nullcontext() as limit:
        small = fleet.pod(within=limit.within if limited else (), queues=[fleet.queue, "large"])
        fleet.deployment.await_ready([*others, fleet.deployment.place(small)])
        with fleet.under_load() as load:
            time.sleep(1)
            large = load.publish("fill_memory", "large", NEEDED_MB if limited else 0, queue="large")
            first = wait_until(lambda: runs_of(load, large), timeout=30, what="the large run")[0]
            if not limited:
                os.kill(first["pid"], signal.SIGKILL)
            wait_until(lambda: len(runs_of(load, large)) > 1, timeout=30, what="it to run again")
        assert not limited or limit.kills() == 1
        assert small.running
        check(load, "a child out of memory" if limited else "a child killed as if out of memory")
        small.stop(timeout=0)


@pytest.mark.slow
def test_the_tasks_of_a_killed_container_run_again(fleet, check):
    """Semantics 7: its locks are free after the lease, and the visibility timeout returns its messages."""
    fleet.deployment.scale(PODS)
    with fleet.under_load(**LONG) as load:
        run = wait_until(lambda: long_run_on(load, fleet.deployment.pods), timeout=60, what="a long run")
        victim = next(pod for pod in fleet.deployment.pods if pod.nodename == run["pod"])
        victim.kill()
        fleet.deployment.replace(victim)
        wait_until(lambda: len(runs_of(load, run["id"])) > 1, timeout=60, what="it to run again")
    check(load, "a container killed, all its processes", may_lose=1)


@pytest.fixture
def cable(fleet, network, fleet_redis):
    """A pod, a function that silently cuts it off from Redis, and one that connects it again.

    A proxy does both where this process may not create a network.
    """
    if network is not None:
        pod = fleet.pod(fleet_redis.url.replace("127.0.0.1", network.host), within=network.within)
        yield pod, network.pull, network.plug
        network.plug()
        return
    with Proxy(fleet_redis.port) as proxy:
        yield fleet.pod(proxy.url), proxy.freeze, proxy.thaw


@pytest.mark.slow
def test_a_pod_that_is_cut_off_ends_its_run_before_another_pod_starts_it(fleet, check, cable, network):
    """Semantics 7 and 8: `lock_lost="abort"` ends the run within its lease.

    While it is cut off, the pod can neither acknowledge runs nor publish the retry of the aborted one. So as
    many tasks as it has processes may complete twice.
    """
    pod, cut, mend = cable
    others = [fleet.deployment.place(fleet.pod(queues=["parked"])) for _ in range(PODS - 1)]
    fleet.deployment.place(pod)
    fleet.deployment.await_ready([pod, *others])
    with fleet.under_load(**LONG) as load:
        run = wait_until(lambda: long_run_on(load, [pod]), timeout=60, what="a long run on the pod")
        names = [other.nodename for other in others]
        fleet.broker.control.add_consumer(
            fleet.queue, destination=names, reply=True, timeout=10, limit=len(names)
        )
        cut()
        cut_at = time.time()
        aborted = lambda: [entry for entry in load.entries("lost its lock") if entry["id"] == run["id"]]  # noqa: E731
        left = wait_until(aborted, timeout=30, what="the run to be aborted")[0]
        wait_until(lambda: len(runs_of(load, run["id"])) > 1, timeout=60, what="it to run on another pod")
        mend()
        time.sleep(1)
    event = "a pod cut off from Redis" + (", by a proxy" if network is None else "")
    check(load, event, may_repeat=CONCURRENCY)
    again = runs_of(load, run["id"])[1]
    assert again["pod"] != pod.nodename
    assert left["at"] < again["at"]
    assert left["at"] - cut_at < TTL + 2
