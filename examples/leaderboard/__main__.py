"""The story: the same games without the lock and with it; then what lies in Redis.

`python -m examples.leaderboard redis+cluster://…` keeps the boards in that Cluster.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from redis import Redis
from redis.cluster import RedisCluster
from rich.console import Console

from examples.embedded.celery_processes import CeleryProcesses
from examples.embedded.processes import Process, Processes
from examples.embedded.story import figures, run, wait_until
from examples.embedded.valkey import Valkey

USERS = 15  # the first has played one game, the last fifteen
DELIVERED_TWICE = 4  # every fourth game
WORKERS = ("worker-1", "worker-2")


def leaderboard(console: Console, processes: Processes) -> bool:
    workers = _start(processes)
    from examples.leaderboard import app  # noqa: PLC0415 - it reads the environment

    console.print(f"{len(list(_games()))} games of {USERS} users, every fourth of them published twice.\n")
    table = figures("delivered", "reckoned", "recorded", "wrong totals")
    tasks = ((1, "without the lock", app.record_game_without_lock), (2, "with LockedTask", app.record_game))
    for number, title, task in tasks:
        pass
    return True
