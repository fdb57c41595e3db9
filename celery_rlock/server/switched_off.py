"""A lock server that lets everybody in: `rlock_enabled = False`, for users' unit tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery_rlock.core.name import Name, Owner
from celery_rlock.core.replies import Taken
from celery_rlock.core.scripts import Scripts


class SwitchedOff(Scripts):
    """Answers every verb with yes; no server is asked."""

    def __init__(self, prefix: str) -> None:
        self.client: Any = None
        self.prefix = prefix

    def acquire(self, *_: Any, **__: Any) -> Taken:
        return Taken(0)

    def release(self, *_: Any, **__: Any) -> int:
        return 1

    def undo(self, *_: Any) -> None:
        pass

    def finish(self, *_: Any) -> int:
        return 1

    def copy(self, *_: Any) -> int:
        return 0

    def renew(self, leases: Iterable[tuple[Name, Owner, float]]) -> list[bool | Exception]:
        return [True for _ in leases]

    def locked(self, _: Name) -> bool:
        return False

    def owned(self, *_: Any) -> bool:
        return True
