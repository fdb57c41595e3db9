"""What a worker says of its set-up when it starts."""

from __future__ import annotations

import json
import re

import pytest

from tests.conftest import DEFAULT_KIND
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.workers import Worker

SOON = 20


def start(broker, locks, task=None, base="", pool="solo", **conf):
    conf |= {"broker_url": broker, "result_backend": broker, "rlock_url": locks}
    env = {
        "RLOCK_TEST_CONF": json.dumps(conf),
        "RLOCK_TEST_TASK": json.dumps(task or {}),
        "RLOCK_TEST_BASE": base,
    }
    return Worker.start("tests.ops.patient:app", pool=pool, env=env)


def warned(worker):
    """The checks that it warned of, as often as it did."""
    return re.findall(
        r"WARNING/MainProcess\] .*; to do: .+ \(check '(\w+)' of `celery rlock doctor`\)", worker.log
    )


@pytest.fixture(scope="module")
def broker(servers):
    return servers(DEFAULT_KIND).url


CHOSEN = {"broker_transport_options": {"visibility_timeout": 300}}


def test_it_warns_once_of_each_problem_with_what_to_do(broker):
    """Of the server only of eviction, which alone drops locks that are held."""
    task = {
        "lock_ttl": 600,
        "lock_max_hold": 5,
        "acks_late": True,
        "lock_busy": "retry",
        "ignore_result": True,
    }
    with (
        Server.start(DEFAULT_KIND, maxmemory="100mb", maxmemory_policy="allkeys-lru") as server,
        start(broker, server.url, task, "call", "prefork", worker_prefetch_multiplier=0) as worker,
    ):
        wait_until(lambda: "eviction" in warned(worker), timeout=SOON, what="the warning of eviction")
    assert sorted(warned(worker)) == [
        "acks",
        "bypass",
        "eviction",
        "leases",
        "limits",
        "prefetch",
        "visibility",
    ]


def test_it_says_nothing_where_all_is_well(broker, server):
    with Proxy(server.port) as proxy, start(broker, proxy.url, **CHOSEN) as worker:
        wait_until(lambda: any(b"INFO" in seen for seen in proxy.seen), timeout=SOON, what="the look")
    assert "celery rlock doctor" not in worker.log
    assert "Traceback" not in worker.log


def test_a_silent_server_neither_delays_nor_fails_the_start(broker, server):
    with Proxy(server.port) as proxy:
        proxy.freeze()
        with start(broker, f"{proxy.url}?socket_timeout=300", **CHOSEN) as worker:
            assert "ready." in worker.log
    assert "celery rlock doctor" not in worker.log
    assert "Traceback" not in worker.log


def test_a_server_that_is_down_does_not_fail_the_start(broker, server):
    with Proxy(server.port) as proxy:
        proxy.refuse()
        with start(broker, proxy.url, **CHOSEN) as worker:
            assert "ready." in worker.log
    assert "celery rlock doctor" not in worker.log
    assert "Traceback" not in worker.log
