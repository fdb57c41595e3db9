"""The one logger, and the fields that every line about a lock has."""

from __future__ import annotations

import logging

logger = logging.getLogger("celery_rlock")


def about(key: str, owner: object, task_id: object) -> dict[str, object]:
    """The `extra` of a line: which lock, who has it or wants it, and for which task."""
    return {"key": key, "owner": str(owner), "task_id": task_id}
