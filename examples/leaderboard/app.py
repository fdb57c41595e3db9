"""A game's points depend on the games before it: reckoned in Python, recorded by one script, under a lock."""

import os
import time
from datetime import datetime, timezone

from celery import Celery

from celery_rlock import LockedTask
from examples.leaderboard.board import Board, Outdated, connect

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
BOARD_URL = os.environ.get("BOARD_URL", REDIS_URL)  # the boards, and the locks, may lie in a Cluster

app = Celery("leaderboard", broker=REDIS_URL)
app.conf.rlock_url = os.environ.get("RLOCK_URL", BOARD_URL)
boards = connect(BOARD_URL)

# Outdated: the user has played meanwhile, so reckon again. Under the lock only a lost lock leads there.
AGAIN = {"autoretry_for": (Outdated,), "default_retry_delay": 0, "max_retries": None}


@app.task(base=LockedTask, lock_key="board:{board}:user:{user}", **AGAIN)
def record_game(board: int, user: str, game: str) -> None:
    _record(Board(boards, board), user, game)


@app.task(**AGAIN)
def record_game_without_lock(board: int, user: str, game: str) -> None:
    _record(Board(boards, board), user, game)


def _record(board: Board, user: str, game: str) -> None:
    if not board.has(game):
        seen = board.games(user)
        board.record(user, game, seen, reckon(seen + 1), datetime.now(timezone.utc).date())


def reckon(nth_game: int) -> int:
    """Every third game counts double. Real ones ask another service, and take longer."""
    time.sleep(0.01)
    return 20 if nth_game % 3 == 0 else 10
