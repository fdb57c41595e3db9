"""Doubts the answer of a Cluster's node that slept through a failover. See `server/cluster.py`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError

from celery_rlock.server.clock import now
from celery_rlock.server.cluster import MOST_WITNESSES, SLOW, TIME_TO_AGREE
from celery_rlock.server.failures import FAILURES

_PAUSE = 0.05


def node_to_answer(client: Redis | RedisCluster, key: str) -> Any:
    """The node of a Cluster to which a request for the key will go; None without a Cluster, or if unknown."""
    if isinstance(client, RedisCluster):
        with suppress(*FAILURES):
            return client.get_node_from_key(key)
    return None


async def refuse_old_primary(client: Redis | RedisCluster, answered: Any, key: str, sent: float) -> None:
    """Raise RedisConnectionError if the request that was sent to this node at `sent` must be sent again."""
    if answered is None or now() - sent <= SLOW or not isinstance(client, RedisCluster):
        return
    give_up = now() + TIME_TO_AGREE
    while True:
        primary = await _primary_by_another(answered, client, key)
        if primary in {None, (answered.host, answered.port)}:
            return
        if await _primary_as_seen_by(answered, client, key) == primary or now() >= give_up:
            with suppress(*FAILURES):
                await client.nodes_manager.initialize()
            raise RedisConnectionError("another node has become the primary, so this answer does not count")
        await asyncio.sleep(_PAUSE)


async def _primary_by_another(answered: Any, client: RedisCluster, key: str) -> tuple[str, int] | None:
    others = [node for node in client.get_primaries() if node.name != answered.name]
    for witness in others[:MOST_WITNESSES]:
        primary = await _primary_as_seen_by(witness, client, key)
        if primary is not None:
            return primary
    return None


async def _primary_as_seen_by(witness: Any, client: RedisCluster, key: str) -> tuple[str, int] | None:
    """The address of the node that has the key; None if the witness does not say."""
    try:
        await witness.execute_command("EXISTS", key)
    except MovedError as moved:
        host = moved.host or witness.host  # a node may know the port only
        return client.nodes_manager.remap_host_port(host, moved.port)
    except (*FAILURES, OSError):
        return None
    return witness.host, witness.port  # the key is here
