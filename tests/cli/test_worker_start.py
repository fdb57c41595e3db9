"""The checks that a worker runs when it starts: it logs each problem once, and asks only the lock server."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.doctor_app import APP
from tests.faults.server.lock_outages import server_with_password
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.support.servers import DEFAULT_KIND, Server
from tests.support.workers import Worker

SOON = 20


def start(broker, locks, task=None, base="", pool="solo", **conf):
    conf |= {"broker_url": broker, "result_backend": broker, "rlock_url": locks}
    env = {
        "RLOCK_TEST_CONF": json.dumps(conf),
        "RLOCK_TEST_TASK": json.dumps(task or {}),
        "RLOCK_TEST_BASE": base,
    }
    return Worker.start(APP, pool=pool, env=env)


def warned(worker):
    """The names of the checks in its warnings, one for each warning."""
    return re.findall(
        r"WARNING/MainProcess\] .*; to do: .+ \(check '(\w+)' of `celery rlock doctor`\)", worker.log
    )


@pytest.fixture(scope="module")
def broker(servers):
    return servers(DEFAULT_KIND).url


CHOSEN = {"broker_transport_options": {"visibility_timeout": 300}}


def test_it_warns_once_of_each_problem_and_says_what_to_do(broker):
    """Of the checks of the server, a worker runs those of the connection and of eviction."""
    task = {
        "lock_ttl": 600,
        "lock_max_hold": 5,
        "acks_late": True,
        "lock_busy": "retry",
        "ignore_result": True,
    }
    with (
        Server.start(DEFAULT_KIND, maxmemory="100mb", maxmemory_policy="allkeys-lru") as server,
        start(broker, server.url, task, "publishing", "prefork", worker_prefetch_multiplier=0) as worker,
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


def test_it_tells_a_task_that_has_options_and_no_lock(broker, server):
    """Also in an app without any LockedTask, where none of our steps runs."""
    with start(broker, server.url, {"lock_key": "k"}, "forgotten") as worker:
        pass
    assert worker.log.count("task locked has lock_key and runs without a lock, because its base is") == 1
    assert "ERROR/MainProcess] task locked has lock_key" in worker.log


def test_it_logs_nothing_if_all_is_well(broker, server):
    with Proxy(server.port) as proxy, start(broker, proxy.url, **CHOSEN) as worker:
        wait_until(
            lambda: any(b"INFO" in seen for seen in proxy.seen), timeout=SOON, what="the check of eviction"
        )
    assert "celery rlock doctor" not in worker.log
    assert "Traceback" not in worker.log


def test_it_warns_once_of_a_wrong_password_and_does_not_show_it(broker):
    with server_with_password() as server:
        wrong = f"redis://:guessed-in-vain@127.0.0.1:{server.port}/0"
        with start(broker, wrong, **CHOSEN) as worker:
            await_connection_warning(worker, "AuthenticationError")
    assert warned(worker) == ["password", "connection"]
    assert "correct the user and password in rlock_url" in worker.log
    assert "guessed-in-vain" not in worker.log


def test_it_warns_once_of_a_server_that_is_down(broker, server):
    with Proxy(server.port) as proxy:
        proxy.refuse()
        with start(broker, proxy.url, **CHOSEN) as worker:
            await_connection_warning(worker, "ConnectionError")
    assert warned(worker) == ["connection"]
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_silent_server_does_not_delay_the_start_and_is_warned_of_later(broker, server, pool):
    """The worker is ready before the check of the lock server gives up."""
    with Proxy(server.port) as proxy:
        proxy.freeze()
        with start(broker, f"{proxy.url}?socket_timeout=300", pool=pool, **CHOSEN) as worker:
            await_connection_warning(worker, "TimeoutError: no answer within")
    assert worker.log.index("ready.") < worker.log.index("check 'connection'")
    assert warned(worker) == ["connection"]
    assert "Traceback" not in worker.log


def await_connection_warning(worker, reason):
    wait_until(lambda: "connection" in warned(worker), timeout=SOON, what="the warning of the connection")
    assert reason in worker.log
