"""Plays the same games without the lock and with it, and checks the data in Redis afterwards.

`python -m examples.leaderboard redis+cluster://…` keeps the boards and the locks in that Cluster.
"""

from __future__ import annotations

import os
import sys

from celery import Task
from rich.console import Console

from examples.embedded.celery_processes import CeleryProcesses
from examples.embedded.processes import Process, Processes
from examples.embedded.story import figures, run, wait_until
from examples.embedded.valkey import Valkey
from examples.leaderboard.contents import Contents, best, contents

GAMES_OF = {f"user-{number}": number for number in range(1, 16)}
GAMES = [(user, f"{user}:{game}") for user, games in GAMES_OF.items() for game in range(games)]
PUBLISHED = [*GAMES, *GAMES[::4]]


def leaderboard(console: Console, processes: Processes) -> bool:
    workers = _start(processes)
    from examples.leaderboard import app  # noqa: PLC0415 - it reads the environment that _start has set

    console.print(
        f"{len(GAMES_OF)} users play {len(GAMES)} games. {len(GAMES[::4])} games are published twice.\n"
    )
    again = _play(app.plain_game, 1, workers), _play(app.locked_game, 2, workers)
    boards = contents(app.board_of(1), GAMES_OF), contents(app.board_of(2), GAMES_OF)
    table = figures("published", "recorded", "computed again", "wrong totals")
    for title, times, board in zip(("without the lock", "with LockedTask"), again, boards, strict=True):
        table.add_row(title, *map(str, (len(PUBLISHED), board.recorded, times, board.wrong_totals)))
    console.print(table)
    _describe(console, boards[1])
    return again[0] > 0 and again[1] == 0 and _is_right(boards[1])


def _start(processes: Processes) -> list[Process]:
    os.environ["REDIS_URL"] = Valkey(processes).url
    os.environ["BOARD_URL"] = sys.argv[1] if len(sys.argv) > 1 else os.environ["REDIS_URL"]
    env = {name: os.environ[name] for name in ("REDIS_URL", "BOARD_URL")}
    celery = CeleryProcesses(processes, "examples.leaderboard.app", env)
    return celery.start_workers(("worker-1", "worker-2"), "-c", "2")


def _play(task: Task, board: int, workers: list[Process]) -> int:
    """Play all games. Returns how often points had to be computed again."""
    for user, game in PUBLISHED:
        task.delay(board, user, game)
    ends = (" succeeded in ", " raised unexpected: ")
    wait_until(lambda: _count(workers, task, *ends) >= len(PUBLISHED), f"the games of {task.name}")
    return _count(workers, task, " retry: Retry in 0s: Outdated")


def _count(workers: list[Process], task: Task, *whats: str) -> int:
    lines = [line for worker in workers for line in worker.log.splitlines() if f"Task {task.name}[" in line]
    return sum(any(what in line for what in whats) for line in lines)


def _describe(console: Console, board: Contents) -> None:
    first = ", ".join(board.ranking[:3])
    console.print(f"\nThe ranking has {len(board.ranking)} of {len(GAMES_OF)} users: {first} …")
    console.print(
        f"The board's {len(board.lifetimes_ms)} keys are in {board.slots} slot. "
        f"Keys that never expire: {board.without_expiry}.\n"
        f"The others expire in {board.minutes} different minutes."
    )


def _is_right(board: Contents) -> bool:
    complete = (board.recorded, board.wrong_totals) == (len(GAMES), 0)
    tidy = board.slots == 1 and not board.without_expiry and board.minutes > 1
    return complete and tidy and list(board.ranking) == best(GAMES_OF)


if __name__ == "__main__":
    sys.exit(run(leaderboard, "users are playing …"))
