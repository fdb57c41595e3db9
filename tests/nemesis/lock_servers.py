"""The lock servers of the worlds. All clients log in as the least-rights user of docs/security.md."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from typing import TYPE_CHECKING, ClassVar

import redis

from celery_rlock.server.client import connect
from celery_rlock.server.cluster import Client
from tests.faults.server import acl
from tests.faults.topology.overlap_nemesis import ConfiguredSetup, PersistentServer
from tests.support.cluster import Cluster
from tests.support.servers import DEFAULT_KIND, Server

if TYPE_CHECKING:
    from typing_extensions import Self

USER = "rlock"
PREFIX = "rlock:"
_LOGIN = f"{USER}:{acl.PASSWORD}@"


def rights(*more: str) -> tuple[str, ...]:
    """The setting `user` of a server, with the page's rules for a worker and those of these blocks."""
    return (USER, *acl.rules("worker"), *(rule for name in more for rule in acl.rules(name)))


class LockServers:
    """One server, or several behind Sentinel or in a Cluster.

    `forgets` says for which faults the docs allow that granted locks are forgotten, and why.
    """

    name: str
    replicas = 0
    forgets: ClassVar[dict[str, str]]

    def __init__(self) -> None:
        self._running = ExitStack()

    @property
    def servers(self) -> list[Server]:
        """Those that keep locks."""
        raise NotImplementedError

    @property
    def ports(self) -> list[int]:
        """All ports that clients connect to."""
        return [server.port for server in self.servers]

    @property
    def url(self) -> str:
        """As `rlock_url` takes it."""
        raise NotImplementedError

    def start(self) -> None:
        raise NotImplementedError

    def primaries(self) -> list[Server]:
        return self.servers

    def mend(self) -> None:
        """Start what is dead, and return when all is as at the start."""
        for server in self.servers:
            if not server.running:
                server.started()

    def client(self) -> Client:
        """A client like those of users, with no fault on its way."""
        return connect(self.url)

    def names(self) -> dict[str, int]:
        """The Redis keys of all locks, with the milliseconds that they have left; -1 means for ever."""
        found = {}
        for server in self.primaries():
            with server.client(decode_responses=True) as client:
                found |= {name: client.pttl(name) for name in client.scan_iter(f"{PREFIX}*", count=1000)}
        return found

    def refused(self) -> set[str]:
        """The commands that the servers have refused to the user since they started."""
        return {command for server in self.servers if server.running for command in self._refused_by(server)}

    def _refused_by(self, server: Server) -> set[str]:
        with contextlib.suppress(redis.RedisError):
            return acl.refused(server, USER)
        return set()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()


class Standalone(LockServers):
    """One server that has its data again after a restart."""

    name = "standalone"
    forgets: ClassVar[dict[str, str]] = {}
    kind: type[Server] = PersistentServer
    flags: ClassVar[dict[str, object]] = {"appendonly": "yes"}

    def __init__(self) -> None:
        super().__init__()
        self.server = self.kind(DEFAULT_KIND, user=rights(), **self.flags)

    @property
    def servers(self) -> list[Server]:
        return [self.server]

    @property
    def url(self) -> str:
        return self.server.url.replace("redis://", f"redis://{_LOGIN}")

    def start(self) -> None:
        self._running.enter_context(self.server).started()


class Volatile(Standalone):
    """One server without persistence. It forgets all locks when it restarts, as docs/deployments.md says."""

    name = "standalone without persistence"
    forgets: ClassVar[dict[str, str]] = {"restart": "the server restarted with an empty memory"}
    kind = Server
    flags: ClassVar[dict[str, object]] = {}


class Sentinel(LockServers):
    """The set-up without overlaps of docs/deployments.md: three sentinels, a primary, one replica."""

    name = "Sentinel"
    replicas = 1
    forgets: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        super().__init__()
        user = rights("lock_replicas")
        flags = {"appendonly": "yes", "min_replicas_to_write": 1, "min_replicas_max_lag": 10, "user": user}
        self.setup = ConfiguredSetup(PersistentServer, **flags)

    @property
    def servers(self) -> list[Server]:
        return list(self.setup.servers)

    @property
    def ports(self) -> list[int]:
        return [node.port for node in (*self.setup.servers, *self.setup.sentinels)]

    @property
    def url(self) -> str:
        return self.setup.url.replace("sentinel://", f"sentinel://{_LOGIN}")

    def primaries(self) -> list[Server]:
        return [self.setup.primary]

    def start(self) -> None:
        self._running.enter_context(self.setup)

    def mend(self) -> None:
        self.setup.mend()


class ReplicatedCluster(LockServers):
    """Three primaries, a replica for each. A lock counts when its replica has it."""

    name = "Cluster"
    replicas = 1
    forgets: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.cluster: Cluster

    @property
    def servers(self) -> list[Server]:
        return list(self.cluster.nodes)

    @property
    def url(self) -> str:
        return self.cluster.url.replace("redis+cluster://", f"redis+cluster://{_LOGIN}")

    def primaries(self) -> list[Server]:
        return list(self.cluster.primaries)

    def start(self) -> None:
        self.cluster = self._running.enter_context(Cluster.start(DEFAULT_KIND))
        rules = rights("lock_replicas", "cluster")
        for node in self.servers:
            acl.set_user(node, USER, rules[1:], ())
            node._flags["user"] = rules  # for when it starts again

    def mend(self) -> None:
        self.cluster.mend()


class AsynchronousCluster(ReplicatedCluster):
    """The same without `rlock_replicas`: a failover may forget the last writes of the old primary."""

    name = "Cluster without lock_replicas"
    replicas = 0
    forgets: ClassVar[dict[str, str]] = {
        "kill a primary": "the lock was not replicated when its primary died",
        "freeze a primary": "the lock was not replicated when its primary froze",
    }


SETUPS: dict[str, type[LockServers]] = {
    "standalone": Standalone,
    "volatile": Volatile,
    "sentinel": Sentinel,
    "cluster": ReplicatedCluster,
    "cluster-async": AsynchronousCluster,
}
