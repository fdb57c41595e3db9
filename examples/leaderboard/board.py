"""The keys of a board in Redis. They share a hash tag, so one script may use them in a Cluster too."""

from __future__ import annotations

import random
from datetime import date, timedelta
from pathlib import Path

from redis import Redis
from redis.cluster import ClusterNode, RedisCluster

RECORD = (Path(__file__).parent / "record.lua").read_text()
RANKING_SIZE = 10
DAY_KEPT = timedelta(days=2)
TOTALS_KEPT = timedelta(days=90)
SPREAD = 0.1  # random extra time, up to a tenth, so that keys written together do not expire together


class Outdated(Exception):
    """The user has played since the points were computed."""


class Board:
    def __init__(self, client: Redis | RedisCluster, number: int) -> None:
        self._client = client
        self._record = client.register_script(RECORD)
        self._tag = f"{{board:{number}}}"
        self.ranking_key = f"{self._tag}:ranking"

    def games(self, user: str) -> int:
        return int(self._client.hget(self.totals_key(user), "games") or 0)

    def points(self, user: str) -> int:
        return int(self._client.hget(self.totals_key(user), "points") or 0)

    def has(self, game: str) -> bool:
        return bool(self._client.exists(self.game_key(game)))

    def record(self, user: str, game: str, seen: int, points: int, day: date) -> None:
        """Add the points of a game. Raises Outdated if the user has not played exactly `seen` games."""
        keys = (self.game_key(game), self.totals_key(user), self.day_key(user, day), self.ranking_key)
        args = (user, seen, points, RANKING_SIZE, _kept_ms(DAY_KEPT), _kept_ms(TOTALS_KEPT))
        if self._record(keys, args) == -1:
            raise Outdated(user, seen)

    def ranking(self) -> list[str]:
        """The best users, in order."""
        return [user.decode() for user in self._client.zrevrange(self.ranking_key, 0, -1)]

    def keys(self) -> list[bytes]:
        return list(self._client.scan_iter(match=f"{self._tag}*", count=1000))

    def lifetime_ms(self, key: bytes) -> int:
        """The time until the key expires; -1 if it never expires."""
        return int(self._client.pttl(key))

    def totals_key(self, user: str) -> str:
        return f"{self._tag}:totals:{user}"

    def day_key(self, user: str, day: date) -> str:
        return f"{self._tag}:day:{day}:{user}"

    def game_key(self, game: str) -> str:
        return f"{self._tag}:game:{game}"


def connect(url: str) -> Redis | RedisCluster:
    """A client for `redis+cluster://host:port,host:port`, or for any URL that redis-py knows."""
    scheme, _, nodes = url.partition("://")
    if scheme != "redis+cluster":
        return Redis.from_url(url)
    addresses = (node.rpartition(":") for node in nodes.split(","))
    return RedisCluster(startup_nodes=[ClusterNode(host, int(port)) for host, _, port in addresses])


def _kept_ms(time: timedelta) -> int:
    return int(time.total_seconds() * 1000 * random.uniform(1, 1 + SPREAD))
