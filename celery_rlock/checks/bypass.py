"""Whether a locked task's own methods and its Request leave the lock in the way."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

from celery.utils.imports import symbol_by_name

from celery_rlock.checks.finding import Finding, error, warn
from celery_rlock.checks.setup import Setup
from celery_rlock.task import LockedTask
from celery_rlock.worker.request import LockedRequestMixin


def look_at_bypass(setup: Setup) -> Iterator[Finding]:
    """`run()` called directly cannot be seen from here."""
    for task in setup.app.tasks.values():
        if _is_locked(task):
            yield from _methods(task)
            yield from _request(task)


def _is_locked(task: Any) -> bool:
    return isinstance(task, LockedTask) and not str(task.name).startswith("celery.")


def _methods(task: Any) -> Iterator[Finding]:
    names = ["on_bound", "__call__"]
    plan = getattr(task, "_lock_plan", None)
    if plan is not None and plan.options.from_ == "publish":
        names.append("apply_async")
    for name in names:
        owner = _overrider(type(task), name)
        if owner is not None and not _passes_on(vars(owner)[name], name):
            yield error(
                f"{owner.__qualname__}.{name} of task {task.name} bypasses celery-rlock: it takes no lock",
                f"call super().{name}() in it",
            )


def _overrider(task: type, name: str) -> type | None:
    """The class before LockedTask whose method is the one that is called."""
    for cls in task.__mro__:
        if cls is LockedTask:
            return None
        if name in vars(cls):
            return cls
    return None


def _passes_on(method: Any, name: str) -> bool:
    """Whether it mentions the method that it overrides, as `super().name` does."""
    function = inspect.unwrap(getattr(method, "__func__", method))
    code = getattr(function, "__code__", None)
    return code is None or _mentions(code, name)


def _mentions(code: CodeType, name: str) -> bool:
    return name in code.co_names or any(
        _mentions(inner, name) for inner in code.co_consts if isinstance(inner, CodeType)
    )


def _request(task: Any) -> Iterator[Finding]:
    request = symbol_by_name(task.Request)
    if not issubclass(request, LockedRequestMixin):
        yield warn(
            f"the Request class {request.__qualname__} of task {task.name} bypasses celery-rlock: when a "
            "pool child dies its lock stays until the lease ends, and waiters are not woken",
            "derive it from celery_rlock.worker.request.LockedRequestMixin too",
        )
