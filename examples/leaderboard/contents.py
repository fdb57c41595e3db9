"""Reads the board from Redis at the end, and compares it with the games that were played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redis.crc import key_slot

from examples.leaderboard.board import RANKING_SIZE, Board


@dataclass(frozen=True)
class Contents:
    recorded: int
    wrong_totals: int
    ranking: Sequence[str]
    slots: int
    lifetimes_ms: Sequence[int]

    @property
    def without_expiry(self) -> int:
        return sum(lifetime < 0 for lifetime in self.lifetimes_ms)

    @property
    def minutes(self) -> int:
        """The number of different minutes in which the keys expire."""
        return len({lifetime // 60_000 for lifetime in self.lifetimes_ms})


def contents(board: Board, games_of: dict[str, int]) -> Contents:
    """`games_of` has the number of games that each user has played."""
    keys = board.keys()
    return Contents(
        recorded=sum(map(board.games, games_of)),
        wrong_totals=sum(board.points(user) != _points(games) for user, games in games_of.items()),
        ranking=board.ranking(),
        slots=len({key_slot(key) for key in keys}),
        lifetimes_ms=[board.lifetime_ms(key) for key in keys],
    )


def best(games_of: dict[str, int]) -> list[str]:
    """The users that must be in the ranking, in order."""
    return sorted(games_of, key=games_of.__getitem__, reverse=True)[:RANKING_SIZE]


def _points(games: int) -> int:
    return 10 * games + 10 * (games // 3)
