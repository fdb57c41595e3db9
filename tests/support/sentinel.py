"""A master, its replica and three sentinels that watch them."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from typing import TYPE_CHECKING

import redis

from tests.support.processes import wait_until
from tests.support.servers import Kind, Server, binary

if TYPE_CHECKING:
    from typing_extensions import Self

NAME = "mymaster"
SENTINELS = 3
QUORUM = 2
DOWN_AFTER_MS = 500
FAILOVER_TIMEOUT_MS = 2000
#: Roomy: a failover takes two to three seconds on a quiet machine.
WITHIN = 40.0


class SentinelNode(Server):
    """A sentinel for the master on `master_port`."""

    quorum = QUORUM

    def __init__(self, kind: Kind, master_port: int) -> None:
        super().__init__(kind)
        self.name = "sentinel"
        self._master_port = master_port

    def command(self) -> list[str]:
        """Each start writes a new file, so a restarted sentinel knows nothing yet."""
        lines = (
            *self.ports(),
            "bind 127.0.0.1",
            f"dir {self.directory}",
            f"sentinel monitor {NAME} 127.0.0.1 {self._master_port} {self.quorum}",
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {NAME} {FAILOVER_TIMEOUT_MS}",
        )
        config = self.directory / "sentinel.conf"
        config.write_text("\n".join(lines) + "\n")
        return [binary(self.kind), str(config), "--sentinel"]

    def ports(self) -> list[str]:
        """The lines of its file that say where it listens."""
        return [f"port {self.port}"]

    def view(self) -> dict[str, object]:
        """What this sentinel knows of the master."""
        with self.client() as client:
            return client.sentinel_master(NAME)

    def knows(self, *, replicas: int, sentinels: int) -> bool:
        seen = self.view()
        return seen["num-slaves"] == replicas and seen["num-other-sentinels"] == sentinels - 1

    def primary_port(self) -> int:
        with self.client() as client:
            return int(client.sentinel_get_master_addr_by_name(NAME)[1])


class SentinelSetup:
    """Two data servers and three sentinels; which of the two is the primary changes with each failover."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        first = Server(kind, repl_diskless_sync_delay=0)
        second = Server(kind, repl_diskless_sync_delay=0, replicaof=("127.0.0.1", first.port))
        self.servers = (first, second)
        self.sentinels = [SentinelNode(kind, first.port) for _ in range(SENTINELS)]
        self._running = ExitStack()

    @classmethod
    def start(cls, kind: Kind) -> SentinelSetup:
        """A setup in which all sentinels know each other and both servers, and the replica follows."""
        setup = cls(kind)
        try:
            for node in (*setup.servers, *setup.sentinels):
                setup._running.enter_context(node).started()
            setup.await_calm()
        except BaseException:
            setup.stop()
            raise
        return setup

    @property
    def hosts(self) -> list[str]:
        return [f"127.0.0.1:{node.port}" for node in self.sentinels]

    @property
    def broker_url(self) -> str:
        """As Celery takes it; the master's name is a transport option."""
        return ";".join(f"sentinel://{host}/0" for host in self.hosts)

    @property
    def url(self) -> str:
        """As `rlock_url` takes it."""
        return f"{self.broker_url}?master_name={NAME}"

    @property
    def primary(self) -> Server:
        """The server that most sentinels call the primary."""
        ports = sorted(node.primary_port() for node in self.sentinels)
        return next(server for server in self.servers if server.port == ports[len(ports) // 2])

    @property
    def replica(self) -> Server:
        """The server that is not the primary."""
        primary = self.primary
        return next(server for server in self.servers if server is not primary)

    def kill_primary(self) -> Server:
        """Kill the primary and return it. The sentinels notice half a second later."""
        primary = self.primary
        primary.kill()
        return primary

    def demote_primary(self) -> Server:
        """A failover on command: the old primary lives on as a replica. Returns the old primary."""
        primary = self.primary
        # A sentinel that has just seen a failover refuses the next one for a while.
        wait_until(self._asked_for_failover, timeout=WITHIN, what="a sentinel to begin a failover")
        return primary

    def _asked_for_failover(self) -> bool:
        with contextlib.suppress(redis.ResponseError), self.sentinels[0].client() as client:
            return client.execute_command("SENTINEL", "FAILOVER", NAME) is not None
        return False

    def await_failover(self, old: Server) -> Server:
        """The new primary, once all sentinels name it and it takes writes."""

        def agreed() -> bool:
            return all(node.primary_port() != old.port for node in self.sentinels) and _is_primary(new)

        new = next(server for server in self.servers if server is not old)
        wait_until(agreed, timeout=WITHIN, what="the replica to be the primary")
        return new

    def await_calm(self) -> None:
        """Both servers run, all sentinels know all and agree, and the replica follows the primary."""

        def calm() -> bool:
            ports = {node.primary_port() for node in self.sentinels}
            known = all(node.knows(replicas=1, sentinels=SENTINELS) for node in self.sentinels)
            return known and len(ports) == 1 and _follows(self.replica, self.primary)

        wait_until(calm, timeout=WITHIN, what="the replica to follow and the sentinels to agree", every=0.1)

    def mend(self) -> None:
        """Start the dead servers again, make one follow the other, and wait for calm."""
        for server in self.servers:
            if not server.running:
                server.started()
        primary, replica = self.primary, self.replica
        # The sentinels would do both too, but about ten seconds later.
        if not _is_primary(primary):
            _obey(primary, "NO", "ONE")
        if not _follows(replica, primary):
            _obey(replica, "127.0.0.1", primary.port)
        self.await_calm()

    def stop(self) -> None:
        self._running.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _is_primary(server: Server) -> bool:
    with contextlib.suppress(redis.RedisError), server.client() as client:
        return client.info("replication")["role"] == "master"
    return False


def _follows(replica: Server, primary: Server) -> bool:
    with contextlib.suppress(redis.RedisError), replica.client() as client:
        seen = client.info("replication")
        return (seen["role"], seen.get("master_port"), seen.get("master_link_status")) == (
            "slave",
            primary.port,
            "up",
        )
    return False


def _obey(server: Server, host: str, port: object) -> None:
    with server.client() as client:
        client.replicaof(host, port)
