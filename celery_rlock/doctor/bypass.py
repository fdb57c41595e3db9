"""Checks whether a task overrides something in a way that skips the lock."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, TypeVar

from celery.utils.imports import symbol_by_name

from celery_rlock.doctor.findings import Finding, error, named, warn
from celery_rlock.doctor.setup import Setup
from celery_rlock.options.plan import plan_of
from celery_rlock.task import LockedTask
from celery_rlock.worker.request import LockedRequestMixin

T = TypeVar("T")


def check_bypass(setup: Setup) -> Iterator[Finding]:
    """A direct call of `run()` also skips the lock, but no check can see it."""
    tasks = [locked.task for locked in setup.examined]
    for (owner, calls_super), names in _grouped(tasks, _own_publishing):
        if calls_super is None:
            yield warn(
                f"the code of {owner}.apply_async of {named(names)} cannot be examined: if it does not call "
                "super(), these tasks take no lock when they are published",
                "make sure that it calls super().apply_async()",
                at_start=False,
            )
        elif not calls_super:
            yield error(
                f"{owner}.apply_async of {named(names)} does not call super(), so these tasks take no lock "
                "when they are published",
                "call super().apply_async() in it",
            )
    for request, names in _grouped(tasks, _bypassing_requests):
        yield warn(
            f"the Request class {request} of {named(names)} is not a LockedRequestMixin: when a pool child "
            "dies its lock stays until the lease ends, and waiting tasks are not woken",
            "derive it from celery_rlock.worker.request.LockedRequestMixin too",
        )


def _grouped(tasks: list[Any], find: Callable[[Any], Iterator[T]]) -> list[tuple[T, list[str]]]:
    """Each thing found, once, with the names of its tasks: one class may be the base of many."""
    groups: dict[T, list[str]] = defaultdict(list)
    for task in tasks:
        for found in find(task):
            groups[found].append(str(task.name))
    return list(groups.items())


def _own_publishing(task: Any) -> Iterator[tuple[str, bool | None]]:
    """The classes with an `apply_async` of their own, and whether it calls super(); None: not known."""
    plan = plan_of(task)
    if plan is None or plan.options.from_ != "publish":
        return
    for owner in _overriders(type(task), "apply_async"):
        yield owner.__qualname__, _calls_super(vars(owner)["apply_async"], "apply_async")


def _bypassing_requests(task: Any) -> Iterator[str]:
    request = symbol_by_name(task.Request)
    if not issubclass(request, LockedRequestMixin):
        yield request.__qualname__


def _overriders(task: type, name: str) -> Iterator[type]:
    """The classes before LockedTask that define the method."""
    for cls in task.__mro__:
        if cls is LockedTask:
            return
        if name in vars(cls):
            yield cls


def _calls_super(method: Any, name: str) -> bool | None:
    """Whether the code mentions the overridden method, as `super().name` does; None if there is no code."""
    function = inspect.unwrap(getattr(method, "__func__", method))
    code = getattr(function, "__code__", None)
    return None if code is None else _mentions(code, name)


def _mentions(code: CodeType, name: str) -> bool:
    return name in code.co_names or any(
        _mentions(inner, name) for inner in code.co_consts if isinstance(inner, CodeType)
    )
