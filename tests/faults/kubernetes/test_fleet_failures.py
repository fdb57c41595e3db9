"""What Kubernetes does not do on purpose: out of memory, a dead container, a pod that is cut off."""

from __future__ import annotations

import os
import signal
import time
from contextlib import nullcontext

import pytest

from tests.fleet.conftest import CONCURRENCY
from tests.fleet.memory import MemoryLimit
from tests.fleet.network import Network
from tests.support.processes import wait_until
from tests.support.proxy import Proxy

PODS = 3
TTL = 3
LIMIT_MB, HUNGER_MB = 400, 600
pytestmark = [pytest.mark.timeout(180), pytest.mark.parametrize("broker", ["redis"], indirect=True)]


@pytest.fixture(scope="module")
def network():
    """Of the pod that is cut off; None where this process may not make one."""
    with Network() if Network.available() else nullcontext() as network:
        yield network


@pytest.fixture(scope="module")
def listen(network):
    return () if network is None else (network.host,)


def runs_of(load, task_id):
    return [entry for entry in load.entries("start") if entry["id"] == task_id]


def long_run_on(load, pods):
    """A long run on one of these pods that has not ended yet."""
    over = {entry["id"] for entry in load.entries("end")}
    names = {pod.nodename for pod in pods}
    starts = [entry for entry in load.entries("start") if entry["id"] not in over and entry["pod"] in names]
    return next((entry for entry in starts if "-long-" in entry["key"]), None)


def test_a_child_out_of_memory_is_killed_and_its_task_runs_again(cluster, report_of):
    """Semantics 6: the kernel kills the process that takes too much; nobody waits for its lease."""
    limited = MemoryLimit.available()
    cluster.deployment.scale(PODS - 1)
    with MemoryLimit(LIMIT_MB << 20) if limited else nullcontext() as limit:
        small = cluster.pod(within=limit.within if limited else (), queues=[cluster.queue, "hungry"])
        cluster.deployment.place(small).await_ready()
        with cluster.under_load() as load:
            time.sleep(1)
            hungry = load.publish("eat", "hungry", HUNGER_MB if limited else 0, queue="hungry")
            first = wait_until(lambda: runs_of(load, hungry), timeout=30, what="the hungry run")[0]
            if not limited:
                os.kill(first["pid"], signal.SIGKILL)
            wait_until(lambda: len(runs_of(load, hungry)) > 1, timeout=30, what="it to run again")
        assert not limited or limit.kills() == 1
        assert small.running
        report_of(load, "a child out of memory" if limited else "a child killed as if out of memory")
        small.stop(timeout=0)


def test_a_container_is_killed(cluster, report_of):
    """Semantics 7: its locks are free after the lease, its messages come back by the visibility timeout."""
    cluster.deployment.scale(PODS)
    with cluster.under_load(long=5) as load:
        run = wait_until(lambda: long_run_on(load, cluster.deployment.pods), timeout=60, what="a long run")
        victim = next(pod for pod in cluster.deployment.pods if pod.nodename == run["pod"])
        victim.kill()
        cluster.deployment.replace(victim)
        wait_until(lambda: len(runs_of(load, run["id"])) > 1, timeout=30, what="it to run again")
    report_of(load, "a container killed, all its processes", may_lose=1)


@pytest.fixture
def cable(cluster, network, locks):
    """A pod, what cuts it off from Redis without a word, and what mends it: its network, else a proxy."""
    if network is not None:
        pod = cluster.pod(locks.url.replace("127.0.0.1", network.host), within=network.within)
        yield pod, network.pull, network.plug
        network.plug()
        return
    with Proxy(locks.port) as proxy:
        yield cluster.pod(proxy.url), proxy.freeze, proxy.thaw


def test_a_pod_that_is_cut_off_stops_within_its_lease(cluster, report_of, cable, network):
    """Semantics 7 and 8: `lock_lost="abort"` ends its run before another pod may have the lock.

    It cannot tell of its runs that ended meanwhile, nor that it will try again what was aborted: as many
    tasks as it has processes may complete twice.
    """
    pod, cut, mend = cable
    others = [cluster.deployment.place(cluster.pod(queues=["parked"])) for _ in range(PODS - 1)]
    cluster.deployment.place(pod)
    cluster.deployment.await_ready([pod, *others])
    with cluster.under_load(long=6) as load:
        run = wait_until(lambda: long_run_on(load, [pod]), timeout=60, what="a long run on the pod")
        names = [other.nodename for other in others]
        cluster.broker.control.add_consumer(
            cluster.queue, destination=names, reply=True, timeout=10, limit=len(names)
        )
        cut()
        cut_at = time.time()
        aborted = lambda: [entry for entry in load.entries("lost its lock") if entry["id"] == run["id"]]  # noqa: E731
        left = wait_until(aborted, timeout=30, what="the run to be aborted")[0]
        wait_until(lambda: len(runs_of(load, run["id"])) > 1, timeout=60, what="it to run on another pod")
        mend()
        time.sleep(1)
    event = "a pod cut off from Redis" + (", by a proxy" if network is None else "")
    report_of(load, event, may_repeat=CONCURRENCY)
    again = runs_of(load, run["id"])[1]
    assert again["pod"] != pod.nodename
    assert left["at"] < again["at"]
    assert left["at"] - cut_at < TTL + 2
