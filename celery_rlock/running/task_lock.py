"""The lock of a running task: `TaskLock`, which the user sees, and `CallLock`, which takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from celery_rlock.core.execution import Execution
from celery_rlock.core.lease import Lease, LostCallback, ReplacedCallback
from celery_rlock.core.lock import check_ttl
from celery_rlock.errors import LockLost, LockUnavailable
from celery_rlock.server.clock import now
from celery_rlock.server.replies import Busy, Place, RedeliveryReply, Release, Successor


class TaskLock:
    """The lock of one call of a task, on one key or several. All keys are held, or none."""

    def __init__(self, lock: CallLock) -> None:
        self._lock = lock

    @property
    def key(self) -> str:
        """The key. Several keys are joined by commas."""
        return ", ".join(self.keys)

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys, in sorted order."""
        return tuple(lease.redis_keys.key for lease in self._lock.leases)

    @property
    def owner(self) -> str:
        """The holder's name in Redis: `worker/delivery:task-id`."""
        return str(self._lock.execution.owner)

    @property
    def token(self) -> int:
        """The fencing token. It grows with every new ownership of the key; 0 means that there is no lock.

        With several keys this is the token of the first; `tokens` has all of them.
        """
        return self._lock.leases[0].token

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing token of each key."""
        return {lease.redis_keys.key: lease.token for lease in self._lock.leases}

    @property
    def slot(self) -> int:
        """With `lock_limit`: which of the places 0 to limit - 1 this run has, unique among the holders now.

        With several keys this is the place in the first; `slots` has all of them.
        """
        return self._lock.leases[0].slot

    @property
    def slots(self) -> dict[str, int]:
        """The place that this run has in each key."""
        return {lease.redis_keys.key: lease.slot for lease in self._lock.leases}

    @property
    def depth(self) -> int:
        """How many times this execution has entered the lock."""
        return min(lease.depth for lease in self._lock.leases)

    @property
    def held(self) -> bool:
        """Whether the task holds the lock now, by the local deadline. Does not ask Redis."""
        return all(lease.held for lease in self._lock.leases)

    @property
    def lost(self) -> bool:
        """Whether the task held the lock and does not hold it any more."""
        return self._lock.is_lost

    def ensure(self) -> None:
        """Raise LockLost unless the task holds the lock."""
        for lease in self._lock.leases:
            lease.ensure_not_lost()
        if not self._lock.entered:
            task = self._lock.leases[0].task
            raise LockLost(self.key, self.owner, "the task does not hold it", task)

    def extend(self, seconds: float) -> None:
        """Make the lease last at least `seconds` from now. Renewal goes on as before."""
        self.ensure()
        for lease in self._lock.leases:
            lease.extend(check_ttl(seconds))

    def __repr__(self) -> str:
        return f"<TaskLock {self.key!r} owner={self.owner} token={self.token} depth={self.depth}>"


class CallLock:
    """Takes and releases the keys of one call: it enters each of them once, and leaves it once."""

    def __init__(
        self,
        execution: Execution,
        leases: tuple[Lease, ...],
        limits: Mapping[str, int],
        *,
        until_postrun: bool = False,
    ) -> None:
        """`limits` says how many may hold a key; without an entry, one."""
        self.execution, self.leases, self._limits = execution, leases, limits
        self.until_postrun = until_postrun
        self.successors: Mapping[str, Successor] = {}  #: what keeps which lock after this call
        self.since_header = 0  #: when an earlier delivery found the lock busy, by the server's clock
        self.found_busy = 0  #: when the lock was first found busy, by the server's clock in microseconds
        self.is_used = False  #: whether `run()` has begun
        self.spare_run: Callable[[], None] = _do_nothing  #: no loss interrupts this thread's run from then on
        self._entered: list[Lease] = []
        self._on_lost: LostCallback | None = None

    @property
    def entered(self) -> bool:
        """Whether this call has entered the lock, so that there is something to release."""
        return bool(self._entered)

    @property
    def is_lost(self) -> bool:
        return any(lease.lost is not None for lease in self.leases) or (
            self.entered and not all(lease.held for lease in self.leases)
        )

    @property
    def since(self) -> float:
        """When the last of the keys was taken, by the local monotonic clock."""
        return max(lease.since for lease in self.leases)

    @property
    def seconds(self) -> float:
        """For how long the keys have been held."""
        return now() - self.since

    def enter(
        self, ttl: float, replicas: int = 0, place: Place | None = None, *, hold: float = 0
    ) -> Busy | None:
        """Take all keys, in order. Takes none of them if one is busy or unavailable.

        `place` is a place in line for one of the keys, taken if that one is busy. A key with a limit above 1
        stays taken for at least `hold` seconds.
        """
        busy = None
        try:
            for lease in self.leases:
                is_wanted = place is not None and place.redis_keys == lease.redis_keys
                busy = lease.enter(
                    ttl,
                    replicas,
                    place if is_wanted else None,
                    self.since_header,
                    limit=self._limits.get(lease.redis_keys.key, 1),
                    hold=hold,
                )
                if busy is not None:
                    break
                self._entered.append(lease)
        except BaseException:
            with suppress(LockUnavailable):
                self.leave()
            raise
        if busy is not None:
            self.found_busy = self.found_busy or busy.since
            self.leave()
        return busy

    def renew_for(self, seconds: float) -> None:
        """Let the leases of the keys that this call took end so many seconds after they were taken."""
        for lease in self._entered:
            if lease.depth == 1:
                lease.renew_until = lease.since + seconds

    def renew_every(self, seconds: float) -> None:
        """Renew the keys that this call takes at least so often."""
        for lease in self.leases:
            lease.longest_silence = seconds

    def leave(self, *, early: bool = False, ended: bool = False, republished: bool = False) -> None:
        """Leave all keys once. Raises LockUnavailable if Redis could not be told.

        With `early` the lock stays held if the task's message has other deliveries. With `ended` they learn
        that the task has ended. `republished` says that an earlier delivery may not be acknowledged yet.
        """
        errors = []
        for lease in reversed(self._entered):
            # Every delivery of the message takes the first key first, so that is where it learns of the end.
            is_first = lease is self.leases[0]
            is_early = early and is_first
            release = Release(
                early=is_early,
                ended=ended and is_first,
                republished=republished and is_first and (early or ended),
                successor=self.successors.get(lease.redis_keys.lock),
                unused=not self.is_used,
            )
            has_left = not is_early  # also if the server does not answer: then it is told in the background
            try:
                has_left = lease.leave(release) or not is_early
            except LockUnavailable as error:
                errors.append(error)
            finally:
                if has_left:
                    self._entered = [other for other in self._entered if other is not lease]
        if errors:
            raise errors[0]

    def redelivery(self, *, mark: bool = True) -> RedeliveryReply | str:
        """Ask whether the task has ended in another delivery of its message, or which task replaces it.

        With `mark`, this call keeps the lock until its end is known, and then tells the other deliveries.
        """
        first = self.leases[0]
        return first.lock_server.redelivery(first.redis_keys, first.owner, mark=mark)

    def mark_unacked(self, *, redelivered: bool) -> None:
        """The message is about to be published again, before this delivery of it is acknowledged."""
        first = self.leases[0]
        first.lock_server.mark_unacked(first.redis_keys, first.owner, redelivered=redelivered)

    def watch(self, on_lost: LostCallback) -> None:
        """Call `on_lost` when any of the keys is lost, until `unwatch`. The release may find that out too."""
        self._on_lost = on_lost
        for lease in self.leases:
            lease.before_raising = self.spare_run
            lease.on_lost(on_lost)

    def on_replaced(self, callback: ReplacedCallback | None) -> None:
        """Call it when another task replaces this one at one of the keys, until it is None."""
        for lease in self.leases:
            lease.on_replaced(callback)

    def check_deadlines(self) -> None:
        """A long call may have kept the watching threads from looking."""
        for lease in self.leases:
            lease.check_deadline()

    def unwatch(self) -> None:
        """Forget the callback and what it refers to: the call, which refers to this lock."""
        on_lost, self._on_lost, self.spare_run = self._on_lost, None, _do_nothing
        if on_lost is not None:
            for lease in self.leases:
                lease.before_raising = _do_nothing
                lease.forget_callback(on_lost)


def _do_nothing() -> None:
    pass


_current: ContextVar[TaskLock | None] = ContextVar("celery_rlock_task_lock", default=None)


def current_lock() -> TaskLock | None:
    """The lock of the task that runs here; None outside of any locked task."""
    return _current.get()


@contextmanager
def holding(lock: TaskLock) -> Iterator[None]:
    """Inside the block, `lock` is the current lock."""
    before = _current.set(lock)
    try:
        yield
    finally:
        _current.reset(before)
