"""The package's one logger, the fields of every line about a lock, and how foreign text is escaped."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger("celery_rlock")


def about(key: str, owner: object, task_id: object) -> dict[str, object]:
    """The `extra` of a log line: which lock, its owner, and the owner's task."""
    return {
        "key": printable(key),
        "owner": printable(str(owner)),
        "task_id": printable(task_id) if isinstance(task_id, str) else task_id,
    }


def printable(text: str) -> str:
    r"""The text with every control character written out: `\x1b`, `\n`, `\u202e`.

    Keys, task ids and worker names come from messages and from Redis. Every text that shows them to people
    goes through this function, so none of them can control a terminal or forge a line of a log.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _escape_arguments(record: logging.LogRecord) -> bool:
    """A filter that lets every record pass, with its arguments escaped."""
    if isinstance(record.args, tuple):
        record.args = tuple(map(_printable_argument, record.args))
    return True


def _printable_argument(argument: Any) -> Any:
    if isinstance(argument, int | float):
        return argument
    text = str(argument)
    return argument if text.isprintable() else printable(text)


logger.addFilter(_escape_arguments)
