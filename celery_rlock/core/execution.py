"""Who holds locks here: an execution, the only thing that may enter a lock again."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from time import monotonic

from celery_rlock.core.errands import errands
from celery_rlock.core.lease import Lease
from celery_rlock.core.name import Name, Owner
from celery_rlock.core.replies import Busy, Heir
from celery_rlock.core.scripts import Scripts
from celery_rlock.errors import LockUnavailable


class Execution:
    """One run of one delivery of a task, or a thread outside any task, with the locks it holds."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.pid = os.getpid()
        self._leases: dict[tuple[int, str], Lease] = {}
        self._freeing: dict[tuple[int, str], float] = {}
        self._mutex = threading.Lock()

    def lease(self, scripts: Scripts, name: Name, task: str = "") -> Lease:
        """This execution's lease of the key: the one it holds, or a new one of depth 0."""
        held = self._leases.get(_place(scripts, name))
        return held if held is not None else Lease(scripts, name, self.owner, task)

    def enter(self, lease: Lease, ttl: float, replicas: int = 0) -> Busy | None:
        with self._mutex:
            place = _place(lease.scripts, lease.name)
            self._leases[place] = lease
            try:
                return lease.enter(ttl, replicas)
            except LockUnavailable:
                if lease.in_doubt:
                    undo = partial(lease.scripts.undo, lease.name, lease.owner, 0)
                    self._free_later(lease, undo, monotonic() + ttl)
                raise
            finally:
                if lease.depth == 0:
                    self._leases.pop(place, None)

    def leave(self, lease: Lease, depth: int, *, early: bool = False, heir: Heir | None = None) -> None:
        """Bring the lease back to `depth`."""
        again = partial(lease.scripts.release, lease.name, lease.owner, depth, early=early, heir=heir)
        self._change(lease, lambda: lease.leave(depth, early=early, heir=heir), again)

    def finish(self, lease: Lease, retries: int, heir: Heir | None = None) -> None:
        """Free the lease of a task that has ended."""
        again = partial(lease.scripts.finish, lease.name, lease.owner, retries, heir)
        self._change(lease, lambda: lease.finish(retries, heir), again)

    def _change(self, lease: Lease, change: Callable[[], None], again: Callable[[], object]) -> None:
        """When the lock cannot be freed now, `again` goes on trying, until its lease has ended anyway."""
        if self.pid != os.getpid():
            return  # a fork of this process leaves its parent's locks alone
        with self._mutex:
            try:
                change()
            except LockUnavailable:
                if lease.depth == 0:
                    self._free_later(lease, again, lease.deadline)
                raise
            finally:
                if lease.depth == 0:
                    self._leases.pop(_place(lease.scripts, lease.name), None)

    def _free_later(self, lease: Lease, release: Callable[[], object], give_up: float) -> None:
        place = _place(lease.scripts, lease.name)
        if self._freeing.get(place, 0.0) < monotonic():
            self._freeing[place] = give_up
            free = partial(self._free, place, release)
            errands.add(f"release lock {lease.name.key!r}", free, give_up=give_up)

    def _free(self, place: tuple[int, str], release: Callable[[], object]) -> None:
        """Unless this execution has entered it again, as a thread may."""
        with self._mutex:
            if place not in self._leases:
                release()
            self._freeing.pop(place, None)

    def leases(self) -> list[Lease]:
        return list(self._leases.values())


def new_delivery() -> str:
    return secrets.token_hex(4)


_current: ContextVar[Execution | None] = ContextVar("celery_rlock_execution", default=None)
_thread = threading.local()


def current_execution() -> Execution:
    """The execution this code runs in; outside of any it is this thread of this process."""
    execution = _current.get()
    if execution is not None and execution.pid == os.getpid():
        return execution
    execution = getattr(_thread, "execution", None)
    if execution is None or execution.pid != os.getpid():
        execution = _thread.execution = Execution(_thread_owner())
    return execution


@contextmanager
def running(execution: Execution) -> Iterator[None]:
    """Inside, `execution` is the current one."""
    before = _current.set(execution)
    try:
        yield
    finally:
        _current.reset(before)


def _thread_owner() -> Owner:
    return Owner(f"{os.getpid()}@{socket.gethostname()}", new_delivery(), f"thread-{threading.get_ident()}")


def _place(scripts: Scripts, name: Name) -> tuple[int, str]:
    return id(scripts.client), name.lock
