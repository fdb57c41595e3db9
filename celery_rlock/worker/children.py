"""Whether a pool child is dead, asked without reaping it: that is the pool's own business."""

from __future__ import annotations

import os

from billiard.pool import EX_OK, EX_RECYCLE

_FINISHED = (EX_OK, EX_RECYCLE)


def is_child(pid: int) -> bool:
    """Whether this is a process of ours. The \"pids\" of threads and greenlets are not."""
    try:
        _ask(pid)
    except (OSError, OverflowError):
        return False
    return True


def is_gone(pid: int) -> bool:
    """Whether our child has ended, so that nothing in it runs any more."""
    try:
        return _ask(pid)
    except ChildProcessError:
        return True  # and the pool has reaped it


def has_crashed(pid: int) -> bool:
    """Whether our child has ended otherwise than by finishing its work, and is not reaped yet."""
    try:
        end = _end(pid)
    except (AttributeError, ChildProcessError):
        return False
    return end is not None and (end.si_code != os.CLD_EXITED or end.si_status not in _FINISHED)


def _ask(pid: int) -> bool:
    if hasattr(os, "waitid"):
        return _end(pid) is not None
    try:  # macOS before Python 3.13: a child counts as gone when it is reaped
        os.kill(pid, 0)
    except ProcessLookupError:
        raise ChildProcessError from None
    return False


def _end(pid: int) -> os.waitid_result | None:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
