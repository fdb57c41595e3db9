"""Finds tasks and calls with `lock_…` options that have no effect, because the task is no `LockedTask`.

Nothing in Celery is patched for it. An app with at least one `LockedTask` refuses such a task when the app is
finalized. Celery swallows what a signal's receiver raises, so everything else is an error in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery
from celery.app.annotations import resolve_all
from celery.signals import before_task_publish, celeryd_after_setup

from celery_rlock.errors import ConfigurationError
from celery_rlock.log import logger
from celery_rlock.options.options import NAMES

_OPTIONS = frozenset(f"lock_{name}" for name in NAMES)

#: The tasks of each app that have been looked at.
_fine: WeakKeyDictionary[Celery, set[str]] = WeakKeyDictionary()
_reported: set[str] = set()


def refuse_forgotten(app: Celery) -> None:
    """Raise ConfigurationError if a task of a finalized app has options, and a base of Celery's own."""
    if not app.finalized:  # type: ignore[attr-defined]
        return
    fine = _fine.setdefault(app, set())
    for name in app.tasks.keys() - fine:
        task = app.tasks[name]
        options = _options_without_lock(task)
        if options and _has_celerys_base(task):
            raise ConfigurationError(forgotten_text(name, options))
        fine.add(name)


def forgotten(app: Celery) -> dict[str, list[str]]:
    """The `lock_…` options of each task that is no `LockedTask`."""
    found = {name: _options_without_lock(task) for name, task in app.tasks.items()}
    return {name: options for name, options in found.items() if options}


def forgotten_text(task: str, options: list[str]) -> str:
    return (
        f"task {task} has {', '.join(options)} and runs without a lock, because its base is not LockedTask: "
        "write base=LockedTask, or give the attribute another name"
    )


@before_task_publish.connect(weak=False, dispatch_uid="celery_rlock.ignored_options")
def _report_ignored_options(sender: str = "", properties: Mapping[str, Any] | None = None, **_: Any) -> None:
    """Celery takes the `lock_…` options of a call for properties of the message, which no worker reads."""
    if properties is None or _OPTIONS.isdisjoint(properties) or sender in _reported:
        return
    _reported.add(sender)
    options = ", ".join(sorted(_OPTIONS & properties.keys()))
    logger.error(
        "%s of a call of task %s has no effect: the task has no base=LockedTask, or it was published by its "
        "name; publish it with the apply_async of a LockedTask",
        options,
        sender,
        stack_info=True,
    )


@celeryd_after_setup.connect(weak=False, dispatch_uid="celery_rlock.forgotten")
def _report_forgotten(instance: Any = None, **_: Any) -> None:
    """A worker without any `LockedTask` runs none of our checks, so this one is made here."""
    tasks = instance.app.tasks
    if not any(_is_locked(task) for task in tasks.values()):
        for name, options in forgotten(instance.app).items():
            logger.error("%s", forgotten_text(name, options))


def _is_locked(task: Any) -> bool:
    return hasattr(task, "_lock_plan")


def _options_without_lock(task: Any) -> list[str]:
    found = {option for option in _OPTIONS if not _is_locked(task) and hasattr(task, option)}
    if not found:
        return []
    # The setting task_annotations may give an option to all tasks, whatever their base.
    annotated = {name for given in resolve_all(task.app.annotations, type(task)) for name in given}
    return sorted(found - annotated)


def _has_celerys_base(task: Any) -> bool:
    """Whether it was made by the decorator, with no class of the user that may have such options too."""
    bases = type(task).__mro__[1:-1]
    is_decorated = "__wrapped__" in vars(type(task))
    return is_decorated and all(base.__module__.partition(".")[0] == "celery" for base in bases)
