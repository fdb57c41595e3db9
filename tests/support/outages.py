"""What may happen to a lock server. Each is a block: the trouble lasts as long as the block.

With a `Proxy` the trouble is that of its clients only. With a `Server` it is that of all clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex

import redis

from tests.support.processes import free_port, wait_until
from tests.support.proxy import Proxy
from tests.support.servers import Server

PAUSE_MS = 60_000
FILLER = "filler"
FILLERS = 2000
SLOW_LOADING = {"key_load_delay": 5000, "loading_process_events_interval_bytes": 1024}


def unreachable_url() -> str:
    """A URL where no server listens."""
    return f"redis://127.0.0.1:{free_port()}/0"


@contextmanager
def refused(proxy: Proxy) -> Iterator[None]:
    """All connections are cut, and new ones are refused."""
    proxy.refuse()
    try:
        yield
    finally:
        proxy.accept()


@contextmanager
def frozen(proxy: Proxy) -> Iterator[None]:
    """Connections are accepted, and no request is answered."""
    proxy.freeze()
    try:
        yield
    finally:
        proxy.thaw()


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """The server's port refuses connections; the server comes back with an empty memory."""
    server.stop()
    try:
        yield
    finally:
        server.started()


@contextmanager
def silent(server: Server) -> Iterator[None]:
    """The server accepts connections and does not answer (SIGSTOP)."""
    server.pause()
    try:
        yield
    finally:
        server.resume()
        wait_until(server.is_ready, what="the server to answer")


@contextmanager
def paused(server: Server) -> Iterator[None]:
    """CLIENT PAUSE for writes, as operators use it before a failover."""
    with operator(server) as client:
        client.client_pause(PAUSE_MS, all=False)
        try:
            yield
        finally:
            client.client_unpause()


@contextmanager
def read_only(server: Server) -> Iterator[None]:
    """The server is the replica of an empty primary."""
    with Server.start(server.kind, repl_diskless_sync_delay=0) as primary, operator(server) as client:
        client.replicaof("127.0.0.1", primary.port)
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", what="the replication")
        try:
            yield
        finally:
            client.replicaof("NO", "ONE")


@contextmanager
def full(server: Server) -> Iterator[None]:
    """The server's memory is at its limit, and its policy is to evict nothing."""
    with operator(server) as client:
        client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            client.config_set("maxmemory", 0)


@contextmanager
def loading(server: Server) -> Iterator[None]:
    """The server was restarted, and loads its saved data so slowly that it answers LOADING."""
    with operator(server) as client:
        client.mset({f"{FILLER}:{number}": token_hex(256) for number in range(FILLERS)})
        client.save()
    server.stop()
    server.launch(**SLOW_LOADING)
    wait_until(lambda: _is_loading(server), timeout=20, what="the server to load")
    try:
        yield
    finally:
        with operator(server) as client:
            client.config_set("key-load-delay", 0)
            wait_until(lambda: _is_loading(server) is False, timeout=20, what="the server to have loaded")
            client.delete(*(f"{FILLER}:{number}" for number in range(FILLERS)))
        (server.directory / "dump.rdb").unlink()


def _is_loading(server: Server) -> bool | None:
    with server.client() as client:
        try:
            client.get(FILLER)
        except redis.BusyLoadingError:
            return True
        except redis.ConnectionError:
            return None
        return False


@contextmanager
def other_password(server: Server, right: str, other: str = "another-secret") -> Iterator[None]:
    """The server's password is `other`, and all clients have to log in again; afterwards it is `right`."""
    with operator(server) as client:
        client.config_set("requirepass", other)
        _cut_clients(client)
        try:
            yield
        finally:
            client.config_set("requirepass", right)


@contextmanager
def without_rights(server: Server) -> Iterator[None]:
    """The default user may not run scripts."""
    with operator(server) as client:
        client.acl_setuser("default", enabled=True, reset=False, categories=["-@scripting"])
        try:
            yield
        finally:
            client.acl_setuser("default", enabled=True, reset=False, categories=["+@scripting"])


def cut_all_connections(server: Server) -> None:
    """Close every connection to the server; new ones work."""
    with operator(server) as client:
        _cut_clients(client)


def cut_subscriptions(server: Server) -> None:
    """Close the connections that have subscribed to a channel; there is at least one."""
    with operator(server) as client:
        assert client.client_kill_filter(_type="pubsub") > 0


def flush_scripts(server: Server) -> None:
    """Make the server forget all scripts, so that the next EVALSHA finds none."""
    with operator(server) as client:
        client.script_flush()


@contextmanager
def operator(server: Server) -> Iterator[redis.Redis]:
    """One connection that is open and logged in before the trouble begins."""
    with server.client(single_connection_client=True) as client:
        yield client


def _cut_clients(client: redis.Redis) -> None:
    for kind in ("normal", "pubsub"):
        client.client_kill_filter(_type=kind, skipme=True)
