"""Whether a pool child is dead, asked without reaping it: that is the pool's own business."""

from __future__ import annotations

import os

_EVERY_CHILD, _ONE_CHILD = getattr(os, "P_ALL", 0), getattr(os, "P_PID", 1)


def is_child(pid: int) -> bool:
    """Whether this is a process of ours. The \"pids\" of threads and greenlets are not."""
    try:
        _ask(_ONE_CHILD, pid)
    except (OSError, OverflowError):
        return False
    return True


def is_gone(pid: int) -> bool:
    """Whether our child has ended, so that nothing in it runs any more."""
    try:
        return _ask(_ONE_CHILD, pid)
    except ChildProcessError:
        return True  # and the pool has reaped it


def any_gone() -> bool:
    """Whether some child of ours has ended and is not reaped yet."""
    try:
        return _ask(_EVERY_CHILD, 0)
    except ChildProcessError:
        return False


def _ask(which: int, pid: int) -> bool:
    if hasattr(os, "waitid"):
        return os.waitid(which, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return _ask_by_signal(pid)


def _ask_by_signal(pid: int) -> bool:
    """Where there is no waitid (macOS before Python 3.13): a child counts as gone when it is reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        raise ChildProcessError from None
    return pid == 0
