"""Whether a locked task's own methods and its Request leave the lock in the way."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, TypeVar

from celery.utils.imports import symbol_by_name

from celery_rlock.checks.finding import Finding, error, named, warn
from celery_rlock.checks.setup import Setup
from celery_rlock.task import LockedTask
from celery_rlock.worker.request import LockedRequestMixin

T = TypeVar("T")


def look_at_bypass(setup: Setup) -> Iterator[Finding]:
    """`run()` called directly cannot be seen from here."""
    tasks = [task for task in setup.app.tasks.values() if _is_locked(task)]
    for (owner, method), names in _grouped(tasks, _bypassing_methods):
        yield error(
            f"{owner}.{method} of {named(names)} bypasses celery-rlock: it takes no lock",
            f"call super().{method}() in it",
        )
    for request, names in _grouped(tasks, _bypassing_requests):
        yield warn(
            f"the Request class {request} of {named(names)} bypasses celery-rlock: when a pool child dies "
            "its lock stays until the lease ends, and waiters are not woken",
            "derive it from celery_rlock.worker.request.LockedRequestMixin too",
        )


def _is_locked(task: Any) -> bool:
    return isinstance(task, LockedTask) and not str(task.name).startswith("celery.")


def _grouped(tasks: list[Any], find: Callable[[Any], Iterator[T]]) -> list[tuple[T, list[str]]]:
    """What is found, once, with the names of the tasks: one class may be the base of many."""
    groups: dict[T, list[str]] = defaultdict(list)
    for task in tasks:
        for found in find(task):
            groups[found].append(str(task.name))
    return list(groups.items())


def _bypassing_methods(task: Any) -> Iterator[tuple[str, str]]:
    names = ["on_bound", "__call__"]
    plan = getattr(task, "_lock_plan", None)
    if plan is not None and plan.options.from_ == "publish":
        names.append("apply_async")
    for name in names:
        for owner in _overriders(type(task), name):
            if not _passes_on(vars(owner)[name], name):
                yield owner.__qualname__, name


def _bypassing_requests(task: Any) -> Iterator[str]:
    request = symbol_by_name(task.Request)
    if not issubclass(request, LockedRequestMixin):
        yield request.__qualname__


def _overriders(task: type, name: str) -> Iterator[type]:
    """The classes before LockedTask that have the method."""
    for cls in task.__mro__:
        if cls is LockedTask:
            return
        if name in vars(cls):
            yield cls


def _passes_on(method: Any, name: str) -> bool:
    """Whether it mentions the method that it overrides, as `super().name` does."""
    function = inspect.unwrap(getattr(method, "__func__", method))
    code = getattr(function, "__code__", None)
    return code is None or _mentions(code, name)


def _mentions(code: CodeType, name: str) -> bool:
    return name in code.co_names or any(
        _mentions(inner, name) for inner in code.co_consts if isinstance(inner, CodeType)
    )
