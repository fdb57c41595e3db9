"""Data of other programs on the same Redis, which no lock may touch."""

from __future__ import annotations

import redis


def move_in(client: redis.Redis) -> None:
    """Keys of every type, named as a careless or hostile message might name them."""
    client.zadd("leaderboard:waiters", {"ann": 1, "L:1:bob": 2, "": 3})
    client.set("leaderboard:woken", "ann")
    client.set("leaderboard:token", "7")
    client.hset("leaderboard", mapping={"": "1", "@token": "7", "1:task": "1"})
    client.hset("userhash", mapping={"": "1", "name": "ann"})
    client.zadd("userhash:waiters", {"ann": 1})
    client.set("text", "hello")
    client.rpush("list:waiters", "a", "b")
    client.sadd("set", "a")
    client.hset("rlock", mapping={"": "1"})  # the prefix without its colon


def belongings(client: redis.Redis, prefix: str = "rlock:") -> dict[bytes, bytes]:
    """Everything outside the prefix, to be compared with itself later."""
    ours = prefix.encode()
    keys = [key for key in client.scan_iter(count=1000) if not key.startswith(ours)]
    return {key: client.dump(key) for key in sorted(keys)}
