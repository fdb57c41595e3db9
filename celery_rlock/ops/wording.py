"""How things are written for people: text that cannot do harm to a terminal, and times."""

from __future__ import annotations

import time

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def printable(text: str) -> str:
    r"""The text with whatever a terminal could obey written out: `\x1b`, `\n`, `\u202e`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def duration(seconds: float) -> str:
    """`0.4s`, `12s`, `4m12s`, `3h05m`, `2d04h`."""
    if seconds < 10:  # noqa: PLR2004 - below, a tenth matters
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02d}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02d}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02d}h"


def moment(seconds: float) -> str:
    """Local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def counted(number: int, thing: str) -> str:
    """`1 waiter`, `2 waiters`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
