"""A Redis Cluster: three primaries, a replica for each."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from typing import TYPE_CHECKING

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from tests.support.processes import free_port, wait_until
from tests.support.servers import Kind, Server

if TYPE_CHECKING:
    from typing_extensions import Self

PRIMARIES = 3
NODE_TIMEOUT_MS = 1000
#: Roomy: a failover takes two to three seconds on a quiet machine.
WITHIN = 40.0


class ClusterNode(Server):
    """A node of the cluster; a restart keeps its identity and loses its data."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(
            kind,
            cluster_enabled="yes",
            cluster_port=free_port(),
            cluster_node_timeout=NODE_TIMEOUT_MS,
            # A replica whose link was down for long on a loaded machine takes over all the same.
            cluster_replica_validity_factor=0,
            repl_diskless_sync_delay=0,
        )

    @property
    def bus(self) -> int:
        return int(self._flags["cluster_port"])

    @property
    def id(self) -> str:
        return str(self.run("MYID"))

    def run(self, *words: object) -> object:
        """Run a subcommand of CLUSTER and return its answer."""
        with self.client(decode_responses=True) as client:
            return client.execute_command("CLUSTER", *words)

    def says_ok(self) -> bool:
        return self._state().get("cluster_state") == "ok"

    def _state(self) -> dict[str, str]:
        with contextlib.suppress(redis.RedisError), self.client() as client:
            return client.cluster("INFO")
        return {}

    def knows(self) -> int:
        return int(self._state().get("cluster_known_nodes", 0))

    def is_primary(self) -> bool:
        with contextlib.suppress(redis.RedisError), self.client() as client:
            return client.info("replication")["role"] == "master"
        return False

    def follows_a_primary(self) -> bool:
        with contextlib.suppress(redis.RedisError), self.client() as client:
            return client.info("replication").get("master_link_status") == "up"
        return False

    def slots(self) -> list[range]:
        """The slots that this node says it serves."""
        lines = str(self.run("NODES")).splitlines()
        words = next(line.split() for line in lines if "myself" in line)[8:]
        ends = [word.split("-") for word in words if not word.startswith("[")]
        return [range(int(pair[0]), int(pair[-1]) + 1) for pair in ends]


class Cluster:
    """Six nodes by default. Each failover changes which of them are primaries."""

    def __init__(self, kind: Kind, primaries: int = PRIMARIES, replicas: int = 1) -> None:
        """Each of the primaries has `replicas` replicas: 1 or 0."""
        self.kind = kind
        self._primaries = primaries
        self.nodes = [ClusterNode(kind) for _ in range(primaries * (1 + replicas))]
        self._running = ExitStack()

    @classmethod
    def start(cls, kind: Kind, **size: int) -> Cluster:
        """A cluster in which all slots are served and every replica follows."""
        cluster = cls(kind, **size)
        try:
            for node in cluster.nodes:
                cluster._running.enter_context(node).launch()
            for node in cluster.nodes:
                node.await_ready()
            cluster._join()
            cluster.await_calm()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def _join(self) -> None:
        primaries, replicas = self.nodes[: self._primaries], self.nodes[self._primaries :]
        share = -(-SLOTS // self._primaries)
        for number, node in enumerate(primaries):
            node.run("ADDSLOTSRANGE", number * share, min(SLOTS, (number + 1) * share) - 1)
            node.run("SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            node.run("MEET", "127.0.0.1", self.nodes[0].port, self.nodes[0].bus)
        wait_until(
            lambda: all(node.knows() == len(self.nodes) for node in self.nodes), timeout=WITHIN, what="gossip"
        )
        for primary, replica in zip(primaries, replicas, strict=False):
            replica.run("REPLICATE", primary.id)

    @property
    def hosts(self) -> list[str]:
        return [f"127.0.0.1:{node.port}" for node in self.nodes]

    @property
    def url(self) -> str:
        """As `rlock_url` takes it; half of the nodes are enough to find the others."""
        return f"redis+cluster://{','.join(self.hosts[: self._primaries])}"

    @property
    def primaries(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.running and node.is_primary() and node.slots()]

    def primary_of(self, key: str) -> ClusterNode:
        """The node that serves the slot of this Redis key."""
        return self.owner_of(key_slot(key.encode()))

    def owner_of(self, slot: int) -> ClusterNode:
        return next(node for node in self.primaries if any(slot in part for part in node.slots()))

    def replica_of(self, primary: ClusterNode) -> ClusterNode:
        ports = [
            entry["port"] for entry in primary.client().info("replication").values() if _is_replica(entry)
        ]
        return next(node for node in self.nodes if node.port in ports)

    def key_on(self, primary: ClusterNode, stem: str) -> str:
        """A lock's key, beginning with `stem`, whose slot this primary serves."""
        parts = primary.slots()
        keys = (f"{stem}-{number}" for number in range(SLOTS))
        return next(key for key in keys if any(key_slot(key.encode()) in part for part in parts))

    def await_failover(self, old: ClusterNode, key: str) -> ClusterNode:
        """The new owner of the key's slot, once every living node reports the state `ok`."""
        slot = key_slot(key.encode())

        def taken_over() -> ClusterNode | None:
            owner = next((n for n in self.primaries if any(slot in part for part in n.slots())), None)
            return owner if owner is not None and owner is not old and self._is_well() else None

        return wait_until(taken_over, timeout=WITHIN, what="a replica to take over")

    def successor_of(self, old: ClusterNode, key: str) -> ClusterNode | None:
        """The node that the living primaries take for the primary of the key, while the old one is frozen."""
        slot = key_slot(key.encode())
        living = [node for node in self.nodes if node is not old and node.is_primary() and node.says_ok()]
        return next((node for node in living if any(slot in part for part in node.slots())), None)

    def demote(self, primary: ClusterNode) -> None:
        """A failover on command: the old primary lives on as a replica."""
        self.replica_of(primary).run("FAILOVER")

    def await_calm(self) -> None:
        """All nodes run, all slots are served, every replica follows its primary."""

        def calm() -> bool:
            roles = [node.is_primary() or node.follows_a_primary() for node in self.nodes]
            return all(roles) and len(self.primaries) == self._primaries and self._is_well()

        wait_until(calm, timeout=WITHIN, what="the cluster to be whole", every=0.1)

    def _is_well(self) -> bool:
        return all(node.says_ok() for node in self.nodes if node.running)

    def mend(self) -> None:
        """Start the dead nodes again (they rejoin by themselves) and wait for calm."""
        for node in self.nodes:
            if not node.running:
                node.started()
        self.await_calm()

    def stop(self) -> None:
        self._running.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Migration:
    """Moves a slot from its primary to another one, step by step."""

    def __init__(self, cluster: Cluster, key: str, target: ClusterNode | None = None) -> None:
        self.slot = key_slot(key.encode())
        self._nodes = cluster.primaries
        self.source = cluster.owner_of(self.slot)
        self.target = target or next(node for node in self._nodes if node is not self.source)

    def begin(self) -> None:
        """From now on the source answers ASK for a key that it does not have."""
        self.target.run("SETSLOT", self.slot, "IMPORTING", self.source.id)
        self.source.run("SETSLOT", self.slot, "MIGRATING", self.target.id)

    def move_keys(self) -> None:
        """Move the keys of the slot to the target."""
        with self.source.client() as client:
            while keys := client.cluster("GETKEYSINSLOT", self.slot, 100):
                client.migrate("127.0.0.1", self.target.port, keys, 0, 5000)

    def end(self) -> None:
        """From now on the slot belongs to the target, and the source answers MOVED."""
        for node in (self.target, self.source, *self._nodes):
            node.run("SETSLOT", self.slot, "NODE", self.target.id)


def _is_replica(entry: object) -> bool:
    return isinstance(entry, dict) and "port" in entry
