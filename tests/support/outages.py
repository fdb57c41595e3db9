"""What may happen to a lock server, each as a block inside of which it is in trouble."""

from __future__ import annotations

from contextlib import contextmanager
from secrets import token_hex
from typing import NamedTuple

import redis

from celery_rlock.core.script import Script
from tests.conftest import DEFAULT_KIND
from tests.support.processes import wait_until
from tests.support.servers import Server

PASSWORD = "right-and-secret"
ANOTHER = "another-secret"

FILLER = "filler"
FILLERS = 2000
SLOW_LOADING = {"key_load_delay": 5000, "loading_process_events_interval_bytes": 1024}
PAUSE_MS = 60_000


def server_with_password(kind=DEFAULT_KIND):
    """A server for locks alone. Its password stands in its URL, with a timeout that tests can wait for."""
    server = Server(kind, requirepass=PASSWORD)
    server.url = f"redis://:{PASSWORD}@127.0.0.1:{server.port}/0"
    return server.started()


class Incident(NamedTuple):
    """How it begins and ends, and what LockUnavailable says meanwhile."""

    block: object
    said: str

    def __call__(self, server):
        return self.block(server)

    def __str__(self):
        return self.block.__name__


@contextmanager
def stopped(server):
    """Its port refuses connections; it comes back with an empty memory."""
    server.stop()
    try:
        yield
    finally:
        server.started()


@contextmanager
def silent(server):
    """It accepts connections and never answers."""
    server.pause()
    try:
        yield
    finally:
        server.resume()
        wait_until(server.is_ready, what="the server to answer")


@contextmanager
def paused(server):
    """CLIENT PAUSE, as operators use it before a failover."""
    with operator(server) as client:
        client.client_pause(PAUSE_MS, all=False)
        try:
            yield
        finally:
            client.client_unpause()


@contextmanager
def read_only(server):
    """It became the replica of an empty primary."""
    with Server.start(server.kind, repl_diskless_sync_delay=0) as primary, operator(server) as client:
        client.replicaof("127.0.0.1", primary.port)
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", what="the replication")
        try:
            yield
        finally:
            client.replicaof("NO", "ONE")


@contextmanager
def full(server):
    """Its memory is at its limit, and it may evict nothing."""
    with operator(server) as client:
        client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            client.config_set("maxmemory", 0)


@contextmanager
def loading(server):
    """It was restarted, and loads what it had saved."""
    with operator(server) as client:
        client.mset({f"{FILLER}:{number}": token_hex(256) for number in range(FILLERS)})
        client.save()
    server.stop()
    flags, server._flags = server._flags, {**server._flags, **SLOW_LOADING}
    server.launch()
    server._flags = flags
    wait_until(lambda: _is_loading(server), timeout=20, what="the server to load")
    try:
        yield
    finally:
        with operator(server) as client:
            client.config_set("key-load-delay", 0)
            wait_until(lambda: _is_loading(server) is False, timeout=20, what="the server to have loaded")
            client.delete(*(f"{FILLER}:{number}" for number in range(FILLERS)))
        (server.directory / "dump.rdb").unlink()


def _is_loading(server):
    with server.client() as client:
        try:
            client.get(FILLER)
        except redis.BusyLoadingError:
            return True
        except redis.ConnectionError:
            return None
        return False


@contextmanager
def other_password(server):
    """Its password was changed, and everybody has to log in again."""
    with operator(server) as client:
        client.config_set("requirepass", ANOTHER)
        cut_clients(client)
        try:
            yield
        finally:
            client.config_set("requirepass", PASSWORD)


@contextmanager
def without_rights(server):
    """Somebody took the right to run scripts from its users."""
    with operator(server) as client:
        client.acl_setuser("default", enabled=True, reset=False, categories=["-@scripting"])
        try:
            yield
        finally:
            client.acl_setuser("default", enabled=True, reset=False, categories=["+@scripting"])


@contextmanager
def operator(server):
    """One connection that is open and logged in before anything happens."""
    with server.client(single_connection_client=True) as client:
        yield client


def cut_clients(client):
    for kind in ("normal", "pubsub"):
        client.client_kill_filter(_type=kind, skipme=True)


def restart_empty(server):
    """It loses its memory, and is back at once."""
    server.restart()


def flush_scripts(server):
    with operator(server) as client:
        client.script_flush()
        assert client.script_exists(Script.load("release").sha) == [False]


def cut_all_connections(server):
    with operator(server) as client:
        cut_clients(client)


STOPPED = Incident(stopped, "ConnectionError: .*refused")
SILENT = Incident(silent, "TimeoutError")
PAUSED = Incident(paused, "TimeoutError")
READ_ONLY = Incident(read_only, "read only replica")
LOADING = Incident(loading, "BusyLoadingError")
OTHER_PASSWORD = Incident(other_password, "AuthenticationError")
WITHOUT_RIGHTS = Incident(without_rights, "NoPermissionError")

#: While they last nobody gets a lock. (A full server still gives them.)
INCIDENTS = [STOPPED, SILENT, PAUSED, READ_ONLY, LOADING, OTHER_PASSWORD, WITHOUT_RIGHTS]

#: After them the server has what it had before.
PASSING = [SILENT, PAUSED, LOADING, OTHER_PASSWORD, WITHOUT_RIGHTS]
