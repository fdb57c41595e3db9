"""Computes the points of a game in Python and records them with one Lua script, under a lock."""

import os
import time
from datetime import datetime, timezone
from functools import cache

from celery import Celery

from celery_rlock import LockedTask
from examples.leaderboard.board import Board, Outdated, connect

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
BOARD_URL = os.environ.get("BOARD_URL", REDIS_URL)  # may be a Cluster; a Celery broker cannot

app = Celery("leaderboard", broker=REDIS_URL)
app.conf.rlock_url = BOARD_URL


@app.task(
    base=LockedTask,
    lock_key="board:{board}:user:{user}",
    autoretry_for=(Outdated,),  # after a lost lock the user may have played meanwhile: compute again
    default_retry_delay=0,
)
def locked_game(board: int, user: str, game: str) -> None:
    record(board_of(board), user, game)


@app.task(autoretry_for=(Outdated,), default_retry_delay=0, max_retries=None)
def plain_game(board: int, user: str, game: str) -> None:
    record(board_of(board), user, game)


def record(board: Board, user: str, game: str) -> None:
    if not board.has(game):
        seen = board.games(user)
        board.record(user, game, seen, points(seen + 1), datetime.now(timezone.utc).date())


def points(nth_game: int) -> int:
    """Every third game counts double. A real rule would ask other services, which takes time."""
    time.sleep(0.01)
    return 20 if nth_game % 3 == 0 else 10


@cache  # one client for each process, created after the fork
def board_of(number: int) -> Board:
    return Board(connect(BOARD_URL), number)
