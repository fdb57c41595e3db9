"""`LockedTask`: a Celery task that runs under its lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from celery import Celery, Task
from celery.result import AsyncResult, EagerResult
from celery.utils import uuid
from kombu.exceptions import EncodeError

from celery_rlock import settings
from celery_rlock.errors import LockNotHeld
from celery_rlock.options.forgotten import refuse_forgotten
from celery_rlock.options.plan import Plan, plan_of
from celery_rlock.publishing import unique
from celery_rlock.publishing.message import Message, as_received
from celery_rlock.running.acquire import run_locked
from celery_rlock.running.call import Call, call_of, without_our_frames
from celery_rlock.running.replaced import refuse_when_replaced
from celery_rlock.running.task_lock import TaskLock, current_lock
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.status import LockStatus
from celery_rlock.telemetry import events, task_log, tracing  # noqa: F401 - they connect to our signals

if TYPE_CHECKING:
    _Task = Task[Any, Any]  # celery-types makes Task generic; Celery's own class is not
else:
    _Task = Task

#: Added to every worker of an app with a locked task. Given by name, so that a publisher does not import
#: them.
_WORKER_STEPS = ("celery_rlock.worker.dead_children:Reaper", "celery_rlock.doctor.at_start:CheckAtStart")
_CONSUMER_STEPS = (
    "celery_rlock.worker.bootsteps:AnnounceRedeliveries",
    "celery_rlock.worker.bootsteps:WakeWaiters",
)

_OneLimit = int | Callable[..., int]
_OneKey = str | Callable[..., str | Iterable[str]]


class LockedTask(_Task):
    """Base class of tasks that run one at a time per key, or `lock_limit` at a time.

    Set options as class attributes or as arguments of the decorator:
    `@app.task(base=LockedTask, lock_key="account:{account_id}", lock_ttl=60)`.
    """

    abstract = True
    Request = "celery_rlock.worker.request:LockedRequest"

    # The options, declared for type checkers and editors. An option that a class does not set has no
    # attribute: its value comes from the app's `rlock_…` setting, else from the default.
    lock_key: _OneKey | list[_OneKey] | tuple[_OneKey, ...] | None
    lock_limit: _OneLimit | list[_OneLimit] | tuple[_OneLimit, ...]
    lock_ttl: float
    lock_max_hold: float | None
    lock_hold_at_least: float
    lock_wait: float
    lock_busy: Literal["retry", "skip", "fail", "reject", "replace"] | Callable[..., str]
    lock_backoff: float
    lock_backoff_max: float
    lock_jitter: bool
    lock_max_attempts: int | None
    lock_unavailable: Literal["retry", "fail", "run"]
    lock_lost: Literal["warn", "abort"] | Callable[..., object]
    lock_from: Literal["run", "publish"]
    lock_until: Literal["start", "return", "postrun"]
    lock_pending: int
    lock_queue_ttl: float
    lock_duplicate: Literal["existing", "raise", "replace"]
    lock_replicas: int

    _lock_plan: Plan | None
    _lock_is_outside: bool

    #: The user's `track_started`. We store STARTED ourselves, after acquiring, so that a redelivered message
    #: cannot overwrite the final state.
    _lock_track_started = False

    @classmethod
    def bind(cls, app: Celery) -> Celery:
        """Not `on_bound`, which the user may override: no class can leave its lock out by mistake."""
        super().bind(app)
        cls._lock_plan = Plan.of(cls, app)
        if cls._lock_plan is not None and cls.track_started:
            cls._lock_track_started, cls.track_started = True, False
        _put_lock_outside(cls)
        app.steps["worker"].update(_WORKER_STEPS)
        app.steps["consumer"].update(_CONSUMER_STEPS)
        refuse_forgotten(app)
        return app

    @property
    def lock(self) -> TaskLock:
        """The lock of this execution. Raises LockNotHeld outside of a running locked task."""
        lock = current_lock()
        if lock is None:
            raise LockNotHeld(str(self.name), "code outside of any locked task")
        return lock

    def lock_keys(self, /, *args: Any, **kwargs: Any) -> tuple[str, ...]:
        """The keys that a call with these arguments takes, in sorted order. Asks no server."""
        return tuple(redis_keys.key for redis_keys in self._redis_keys_of(args, kwargs))

    def lock_of(self, /, *args: Any, **kwargs: Any) -> LockStatus:
        """What is in Redis now about the lock of a call with these arguments: who has it, and who waits.

        Raises LockUnavailable if Redis does not answer.
        """
        lock_server = settings.redis_server(self.app) if settings.enabled(self.app) else None
        return LockStatus(self._redis_keys_of(args, kwargs), lock_server)

    def _redis_keys_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[RedisKeys]:
        plan = plan_of(self)
        if plan is None:
            return []
        # The worker makes the keys from what the message carries.
        with suppress(EncodeError):  # no message can carry this, so it is a direct call
            args, kwargs = as_received(self, Message(args, kwargs, "", {}))
        prefix = settings.prefix(self.app)
        return [RedisKeys.of(key, prefix) for key in plan.keys_of(args, kwargs)]

    def apply_async(  # noqa: PLR0917 - Celery's signature
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> AsyncResult[Any]:
        """Like Celery's, and takes `lock_…` options for this call."""
        options |= {"producer": producer, "link": link, "link_error": link_error, "shadow": shadow}
        send: Callable[..., AsyncResult[Any]] = super().apply_async  # it takes a list of arguments too
        plan = plan_of(self)
        if plan is None:
            return send(args, kwargs, task_id, **options)
        plan, options = plan.for_call(options)
        if plan.has_computed_limit:
            unique.check_limits(self, plan, tuple(args or ()), kwargs or {})
        if not unique.takes_keys(self, plan, options):
            return send(args, kwargs, task_id, **options)
        message = Message(args or (), kwargs or {}, task_id or uuid(), options)
        return unique.publish_once(
            self, plan, message, lambda m: send(m.args, m.kwargs, m.task_id, **m.options)
        )

    def apply(self, *args: Any, **options: Any) -> EagerResult[Any]:
        """Like Celery's, and takes `lock_…` options for this call."""
        plan = plan_of(self)
        if plan is not None:
            _, options = plan.for_call(options)
        return super().apply(*args, **options)

    def retry(self, *args: Any, **options: Any) -> Any:
        """Like Celery's. From here on `lock_lost="abort"` does not interrupt the run, nor does a newer call.

        Celery drops the message of a task whose `retry()` is interrupted while it publishes. A run that a
        newer call has replaced before ends instead of being retried.
        """
        lock, request = current_lock(), self.request_stack.top
        refuse_when_replaced(call_of(request) if request is not None else None)
        if lock is not None:
            lock._lock.spare_run()  # noqa: SLF001 - not for users, but for this package
        return super().retry(*args, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Inside the lock, which `_put_lock_outside` has put around it: on to the next class, or `run()`."""
        request = self.request_stack.top
        call = call_of(request) if request is not None else None
        following = super().__call__
        if getattr(following, "__func__", None) is not Task.__call__ or call is None or not call.begin_run():
            return following(*args, **kwargs)
        return self.run(*args, **kwargs)  # Celery's own `__call__` would push a second request


def _put_lock_outside(cls: type[LockedTask]) -> None:
    """Make the `__call__` of a task's class take the lock, around the `__call__` that the class has.

    A base class with its own `__call__`, such as Flask's app context, may stand before `LockedTask` or after
    it, and may call `super()` or `run()`. Either way the lock is outside, and the user's code inside.
    """
    if "_lock_is_outside" in vars(cls):
        return
    found: Callable[..., Any] = cls.__call__
    after = super(LockedTask, cls).__call__
    inner = None if found is LockedTask.__call__ and after is Task.__call__ else found

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it becomes one
        if type(self) is not cls:  # reached by `super()` of a subclass, which has the lock
            return found(self, *args, **kwargs)
        plan = plan_of(self)
        if plan is None:
            return Call(self, args, kwargs, inner).run()
        lock_server = settings.server(self.app)
        try:
            return run_locked(Call(self, args, kwargs, inner), plan, lock_server)
        except BaseException as error:  # noqa: BLE001 - it is raised again
            raise without_our_frames(error)  # noqa: B904

    cls.__call__ = __call__  # type: ignore[method-assign]
    cls._lock_is_outside = True
