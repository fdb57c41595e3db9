"""The smallest Cluster: three primaries without replicas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.support.processes import free_port, wait_until
from tests.support.servers import Kind, Server

SLOTS = 16384
NODES = 3
WITHIN = 40.0


@contextmanager
def small_cluster(kind: Kind) -> Iterator[list[Server]]:
    """Yields the nodes when all slots are served."""
    buses = [free_port() for _ in range(NODES)]
    with ExitStack() as running:
        nodes = [
            running.enter_context(Server.start(kind, cluster_enabled="yes", cluster_port=bus))
            for bus in buses
        ]
        for number, node in enumerate(nodes):
            _cluster(node, "ADDSLOTSRANGE", number * SLOTS // NODES, (number + 1) * SLOTS // NODES - 1)
            _cluster(node, "SET-CONFIG-EPOCH", number + 1)
            _cluster(node, "MEET", "127.0.0.1", nodes[0].port, buses[0])
        wait_until(lambda: all(map(_is_whole, nodes)), timeout=WITHIN, what="the cluster to be whole")
        yield nodes


def url_of(nodes: list[Server]) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def _is_whole(node: Server) -> bool:
    info = _cluster(node, "INFO")
    return info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(NODES)


def _cluster(node: Server, *words: object) -> object:
    with node.client(decode_responses=True) as client:
        return client.execute_command(" ".join(("CLUSTER", str(words[0]))), *words[1:])
