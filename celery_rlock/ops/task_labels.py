"""Bounded label values: a metric must not grow with what its users send."""

from __future__ import annotations

from collections.abc import Collection

OTHER = "other"

#: What holds a lock and is no task: an `RLock` in other code.
NO_TASK = "RLock"


class TaskLabels:
    """Names of tasks that the app knows, the first `most` of them to come; any other is `other`."""

    def __init__(self, known: Collection[str], most: int) -> None:
        self._known, self._most = known, most
        self._labels: set[str] = set()

    def of(self, task: object) -> str:
        if task == "":
            return NO_TASK
        if not isinstance(task, str) or task not in self._known:
            return OTHER
        if task not in self._labels and len(self._labels) < self._most:
            self._labels.add(task)
        return task if task in self._labels else OTHER


def one_of(value: object, values: Collection[str]) -> str:
    return value if isinstance(value, str) and value in values else OTHER
