"""What holds locks in this process: an execution, the only thing that may re-enter a lock."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from weakref import WeakValueDictionary

from celery_rlock.core.lease import Lease
from celery_rlock.errors import LockUnavailable
from celery_rlock.server.lock_server import LockServer
from celery_rlock.server.owner import Owner, new_delivery
from celery_rlock.server.redis_keys import RedisKeys

#: A lock, on whichever server it is: the same for every `RLock` object with its key.
_LockId = tuple[Hashable, str]


class Execution:
    """One run of one delivery of a task, or a thread outside of any task, with the locks it holds.

    It has one lease for each lock, also when several threads carry its context. An execution that runs inside
    of another one, the `outer`, enters the locks that the outer one holds again.
    """

    def __init__(
        self, owner: Owner, thread: threading.Thread | None = None, outer: Execution | None = None
    ) -> None:
        self.owner, self._outer = owner, outer
        self.pid = os.getpid()
        self._thread = thread
        # A lease lives as long as it is held or a caller uses it, so that all callers share one.
        self._leases: WeakValueDictionary[_LockId, Lease] = WeakValueDictionary()
        self._servers: set[Hashable] = set()  #: the identities of the lock servers in `_leases`
        self._attempts = itertools.count(1)
        self._mutex = threading.Lock()

    def lease(self, lock_server: LockServer, redis_keys: RedisKeys, task: str = "") -> Lease:
        """The one lease of this execution on the key, held or not."""
        server = lock_server.identity
        lock_id = server, redis_keys.lock
        found = self._leases.get(lock_id)
        if found is None and not self._servers <= {server}:
            found = self._held_through_another_client(lock_server, redis_keys)
        if found is None and self._outer is not None:
            outer = self._outer.lease(lock_server, redis_keys, task)
            found = outer if outer.depth else None
        if found is not None:
            return found
        self._servers.add(server)
        made = Lease(
            lock_server,
            redis_keys,
            self.owner,
            self._new_attempt,
            task=task,
            is_abandoned=self._is_abandoned,
        )
        with self._mutex:
            return self._leases.setdefault(lock_id, made)

    def leases(self) -> list[Lease]:
        """The locks that this execution holds."""
        # The references are copied at once; other threads may add leases during an iteration over the values.
        leases = [reference() for reference in self._leases.valuerefs()]
        return [lease for lease in leases if lease is not None and lease.depth > 0]

    def _new_attempt(self) -> str:
        return str(next(self._attempts))

    def _is_abandoned(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def _held_through_another_client(self, lock_server: LockServer, redis_keys: RedisKeys) -> Lease | None:
        """The lease of the same lock that this execution holds through another client of the same server.

        Two clients may reach one server by different names, so the server is asked for the lock's token.
        """
        for server in self._servers - {lock_server.identity}:
            lease = self._leases.get((server, redis_keys.lock))
            if lease is None or lease.depth == 0:
                continue
            with suppress(LockUnavailable):  # the acquire that follows fails too, where the caller expects it
                if lock_server.token(redis_keys, self.owner) == lease.token:
                    return lease
        return None


_current: ContextVar[Execution | None] = ContextVar("celery_rlock_execution", default=None)
#: Made when first used: gevent may patch `threading.local` after this module was imported.
_made_late: dict[str, threading.local] = {}


def current_execution() -> Execution:
    """The execution that this code runs in. Outside of any task it is this thread of this process."""
    execution = _current.get()
    if execution is not None and execution.pid == os.getpid():
        return execution
    thread = _made_late.get("thread") or _made_late.setdefault("thread", threading.local())
    execution = getattr(thread, "execution", None)
    if execution is None or execution.pid != os.getpid():
        execution = thread.execution = Execution(_thread_owner(), threading.current_thread())
    return execution


def inherited_execution() -> Execution | None:
    """The execution of the task whose context this code carries, if there is one."""
    execution = _current.get()
    return execution if execution is not None and execution.pid == os.getpid() else None


@contextmanager
def running(execution: Execution) -> Iterator[None]:
    """Inside the block, `execution` is the current one."""
    before = _current.set(execution)
    try:
        yield
    finally:
        _current.reset(before)


def stay_current(execution: Execution) -> Callable[[], None]:
    """Make `execution` the current one until the returned function is called, in the same thread."""
    before = _current.set(execution)
    return lambda: _current.reset(before)


def _thread_owner() -> Owner:
    return Owner(f"{os.getpid()}@{socket.gethostname()}", new_delivery(), f"thread-{threading.get_ident()}")
