"""What proves a line of docs/migration.md, by what stands under *theirs*."""

from __future__ import annotations

CHECKS = {}


def proves(*theirs):
    def register(check):
        CHECKS.update(dict.fromkeys(theirs, check))
        return check

    return register
