"""Fixtures that several test files of the commands, the doctor and the telemetry share."""

from __future__ import annotations

import pytest
from celery import _state
from celery.app import builtins

from tests.cli.commands_app import make_app
from tests.cli.run_commands import Locks
from tests.cli.telemetry_fleet import EventCapture
from tests.support.processes import free_port, wait_until
from tests.support.servers import DEFAULT_KIND, Server

_HALF_OF_THE_SLOTS = 8192


@pytest.fixture(autouse=True)
def no_tasks_of_other_apps(monkeypatch):
    """Celery gives every app of a process the shared tasks of all others; here an app has its own only."""
    own = {add for add in _state._on_app_finalizers if add.__module__ == builtins.__name__}
    monkeypatch.setattr(_state, "_on_app_finalizers", own)


@pytest.fixture
def app(server):
    """The app of the commands, with broker, results and locks on the default server."""
    return make_app(server.url)


@pytest.fixture
def locks(server):
    return Locks(server.url)


@pytest.fixture(scope="module")
def private_server():
    """A server that only one test file uses, so that its workers may run for the whole file."""
    with Server.start(DEFAULT_KIND) as server:
        yield server


@pytest.fixture(scope="module")
def bus(private_server):
    with EventCapture(private_server.url) as capture:
        yield capture


@pytest.fixture(scope="module")
def cluster():
    """Two primaries of a Cluster, half of the slots each."""
    node = {"cluster_enabled": "yes", "cluster_node_timeout": 5000}
    with (
        Server.start(DEFAULT_KIND, cluster_port=free_port(), **node) as one,
        Server.start(DEFAULT_KIND, cluster_port=(bus_port := free_port()), **node) as two,
    ):
        halves = ((one, 0), (two, _HALF_OF_THE_SLOTS))
        for epoch, (server, first) in enumerate(halves, 1):
            server.client().execute_command("CLUSTER ADDSLOTSRANGE", first, first + _HALF_OF_THE_SLOTS - 1)
            server.client().execute_command("CLUSTER SET-CONFIG-EPOCH", epoch)
        one.client().execute_command("CLUSTER MEET", "127.0.0.1", two.port, bus_port)
        wait_until(
            lambda: all(each.client().cluster("INFO")["cluster_state"] == "ok" for each in (one, two)),
            timeout=30,
            what="the Cluster",
        )
        yield [one, two]
