"""One thread a process keeps the leases of all its locks alive, in batches."""

from __future__ import annotations

import math
import os
import threading
from collections import defaultdict
from time import monotonic
from typing import TYPE_CHECKING

from celery_rlock.core.explain import brief
from celery_rlock.core.log import logger

if TYPE_CHECKING:
    from celery_rlock.core.lease import Lease

_PAUSE_AFTER_ERROR = 0.5
_ENDED = "its lease ended before it was renewed"


class Renewer:
    """Renews every lease it was given each third of its ttl, until it is discarded or lost.

    An error is tried again until the lease's own deadline; only then, or when Redis says that the lock
    is somebody else's, is it lost. Who renews may wait for an answer at that moment, so another thread
    looks at the deadlines, from the first renewal on.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: a forked child holds none of its parent's locks."""
        mutex = threading.Lock()
        self._changed, self._earlier = threading.Condition(mutex), threading.Condition(mutex)
        self._due: dict[Lease, float] = {}
        self._next = self._next_deadline = math.inf
        self._thread: threading.Thread | None = None

    def add(self, lease: Lease) -> None:
        with self._changed:
            due = self._due[lease] = monotonic() + lease.ttl / 3
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rlock-renewal", daemon=True)
                self._thread.start()
            if due < self._next:
                self._next = due
                self._changed.notify()
            if lease.deadline < self._next_deadline:
                self._earlier.notify()

    def discard(self, lease: Lease) -> None:
        with self._changed:
            self._due.pop(lease, None)

    def _run(self) -> None:
        due = self._wait_for_due()
        threading.Thread(target=self._watch, name="rlock-deadlines", daemon=True).start()
        while True:
            try:
                self._renew(due)
                due = self._wait_for_due()
            except Exception:
                logger.exception("renewal failed; trying again")
                threading.Event().wait(_PAUSE_AFTER_ERROR)

    def _watch(self) -> None:
        while True:
            for lease in self._wait_for_deadline():
                self._lose(lease, _ENDED)

    def _wait_for_deadline(self) -> list[Lease]:
        """Sleep until a lease has ended. Renewed ones end later, which is seen when the time has come."""
        with self._earlier:
            while True:
                now = monotonic()
                ended = [lease for lease in self._due if lease.deadline <= now]
                if ended:
                    return ended
                self._next_deadline = min((lease.deadline for lease in self._due), default=math.inf)
                self._earlier.wait(None if self._next_deadline == math.inf else self._next_deadline - now)

    def _wait_for_due(self) -> list[Lease]:
        """Sleep until a lease is due; take along those that will be soon, so that they share a trip."""
        with self._changed:
            while True:
                now = monotonic()
                # Looked up only when the time has come: locks that come and go do not wake this thread.
                if self._next <= now:
                    self._next = min(self._due.values(), default=math.inf)
                if self._next <= now:
                    return [lease for lease, due in self._due.items() if due <= now + lease.ttl / 6]
                self._changed.wait(None if self._next == math.inf else self._next - now)

    def _renew(self, leases: list[Lease]) -> None:
        by_server: dict[int, list[Lease]] = defaultdict(list)
        for lease in leases:
            if monotonic() >= lease.deadline:
                self._lose(lease, _ENDED)
            elif monotonic() >= lease.renew_until:
                self._postpone(lease, lease.deadline)
            else:
                by_server[id(lease.scripts.client)].append(lease)
        for batch in by_server.values():
            self._renew_batch(batch)

    def _renew_batch(self, batch: list[Lease]) -> None:
        scripts = batch[0].scripts
        sent = monotonic()
        answers: list[bool | Exception]
        try:
            answers = scripts.renew((lease.name, lease.owner, lease.ttl) for lease in batch)
        except Exception as error:  # noqa: BLE001 - any failure of the trip is a failure of each lease in it
            answers = [error] * len(batch)
        for lease, answer in zip(batch, answers, strict=True):
            self._note(lease, answer, sent)

    def _note(self, lease: Lease, answer: bool | Exception, sent: float) -> None:
        if answer is True:
            lease.renewed(sent, lease.ttl)
            self._postpone(lease, sent + lease.ttl / 3)
        elif answer is False:
            self._lose(lease, "somebody else released or took it")
        else:
            text = "could not renew lock %r of %s, trying again: %s"
            logger.warning(text, lease.name.key, lease.owner, brief(answer), extra=lease.described)
            self._postpone(lease, min(lease.deadline, monotonic() + min(lease.ttl / 12, 1.0)))

    def _postpone(self, lease: Lease, due: float) -> None:
        with self._changed:
            if lease in self._due:  # not released meanwhile
                self._due[lease] = due

    def _lose(self, lease: Lease, reason: str) -> None:
        with self._changed:
            held = self._due.pop(lease, None) is not None
        if held:
            lease.lose(reason)


renewer = Renewer()
os.register_at_fork(after_in_child=renewer.reset)
