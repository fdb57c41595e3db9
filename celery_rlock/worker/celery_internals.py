"""The only module that touches private names of Celery, kombu and billiard.

Each use says in which version it was seen. All were checked with Celery 5.5 to 5.7.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from billiard.pool import EX_OK, EX_RECYCLE
from celery.worker import state
from celery.worker.request import Request

if TYPE_CHECKING:
    _Request = Request
else:
    _Request = object  # a mixin: the user's own Request class comes after it

#: Exit codes of a pool process that has finished its work (billiard 4.2, `pool.Worker`).
_FINISHED = (EX_OK, EX_RECYCLE)


class RequestHooks(_Request):
    """Calls `on_scheduled` and `on_revoked` for events of a request that have no public hook."""

    #: The timer of a request with an ETA.
    timer_handle: Any = None

    #: Why the run was terminated, instead of Celery's own text.
    revoked_because: str | None = None

    def on_scheduled(self) -> None:
        """Celery has scheduled this request for later; `timer_handle` is its timer."""

    def on_revoked(self) -> None:
        """The request was revoked or expired, and will not start."""

    @property
    def message_headers(self) -> dict[str, Any]:
        """The headers that the pool process will see (5.5: `Request._request_dict`)."""
        return self._request_dict  # type: ignore[attr-defined,no-any-return]

    @property
    def is_first_attempt(self) -> bool:
        """Whether the task has not been retried or replaced."""
        headers = self.message_headers
        return not (headers.get("retries") or headers.get("replaced_task_nesting"))

    def schedule(self, seconds: float) -> None:
        """Have Celery schedule this new request for later (5.5: `Request._eta`).

        Only this worker sees the ETA. The message keeps its own.
        """
        self._eta = datetime.now(timezone.utc) + timedelta(seconds=seconds)

    @property
    def context(self) -> Any:
        """The request as tasks see it (5.5: `Request._context`)."""
        return self._context  # type: ignore[attr-defined]

    @property
    def _eta_timer_entry(self) -> Any:
        return self.timer_handle

    @_eta_timer_entry.setter
    def _eta_timer_entry(self, handle: Any) -> None:
        """5.7: `Consumer` sets this when it schedules a request."""
        self.timer_handle = handle
        self.on_scheduled()

    def _announce_revoked(self, reason: str, *args: Any, **kwargs: Any) -> None:
        """5.5: `Request.revoked`, `maybe_expire` and `terminate` call this."""
        super()._announce_revoked(self.revoked_because or reason, *args, **kwargs)  # type: ignore[misc]
        self.on_revoked()


def has_free_process(pool: Any) -> bool:
    """Whether a task that starts now runs at once (5.5: `state.reserved_requests` run or are in the pool)."""
    return len(state.reserved_requests) < (getattr(pool, "num_processes", 0) or 1)


def is_scheduled(request: Any) -> bool:
    """Whether the request still waits for its ETA (5.5: `state.scheduled_requests`).

    Celery forgets what it had scheduled when it loses the broker.
    """
    return request in state.scheduled_requests  # type: ignore[attr-defined]


def timer_entry(request: Any) -> Any:
    """The entry in the worker's timer. Under gevent the handle is a greenlet that has the entry."""
    return getattr(request.timer_handle, "entry", request.timer_handle)


def replace_timer_call(request: Any, instead: Callable[[Any], None]) -> Callable[[], None]:
    """Make the timer call `instead(request)`. Returns what it would have called: the start of the task.

    With the request as its argument, `celery inspect scheduled` still shows the task.
    """
    entry = timer_entry(request)
    fun, args, kwargs = entry.fun, entry.args, entry.kwargs
    entry.fun, entry.args, entry.kwargs = instead, (request,), {}
    return lambda: fun(*args, **kwargs)


def end_poll(channel: Any) -> None:
    """Let a Redis channel end its BRPOP, within a second (kombu 5.5: `Channel._in_poll`, `_brpop_read`).

    After its consumer was cancelled, a message that it still gets goes back to the broker. kombu itself reads
    that message only when the connection closes.
    """
    if getattr(channel, "_in_poll", None) and getattr(channel, "brpop_timeout", 1):
        with suppress(queue.Empty):
            channel._brpop_read()  # noqa: SLF001


def pool_pids(pool: Any) -> list[int]:
    """The process ids of a prefork pool's children (5.5: `TaskPool._pool`, billiard 4.2: `Pool._pool`)."""
    processes = getattr(pool._pool, "_pool", None) or ()  # noqa: SLF001
    return [process.pid for process in list(processes)]


def has_crashed(pid: int) -> bool:
    """Whether our child has ended without finishing its work, and is not reaped yet."""
    try:
        end = _exit_of(pid)
    except (AttributeError, ChildProcessError):
        return False
    return end is not None and (end.si_code != os.CLD_EXITED or end.si_status not in _FINISHED)


def is_child(pid: int) -> bool:
    """Whether this is a process that we started. The "pids" of threads and greenlets are not."""
    try:
        _has_exited(pid)
    except (OSError, OverflowError):
        return False
    return True


@dataclass(frozen=True)
class ProcessEnd:
    """Call it to learn whether our child has ended, so that none of its code runs any more.

    Two of the same process are equal, so that the background looks once for all jobs that wait for it.
    """

    pid: int

    def __call__(self) -> bool:
        try:
            return _has_exited(self.pid)
        except ChildProcessError:
            return True  # the pool has already reaped it


def _has_exited(pid: int) -> bool:
    """Asks the kernel without reaping the child, because that is the pool's job."""
    if hasattr(os, "waitid"):
        return _exit_of(pid) is not None
    try:  # macOS before Python 3.13 has no waitid: there a child counts as gone once it is reaped
        os.kill(pid, 0)
    except ProcessLookupError:
        raise ChildProcessError from None
    return False


def _exit_of(pid: int) -> os.waitid_result | None:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
