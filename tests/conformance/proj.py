"""The app of the conformance suite: every shape, each as a plain task and as its locked twins.

RLOCK_CONFORMANCE_PACKAGE names a module that adds a real package, which observes tasks or stores results.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery import Celery, Task, signals

from celery_rlock import LockedTask
from celery_rlock.signals import lock_busy
from tests.conformance.notes import ACKS, FREE_TWINS, TWINS, cell_of, note, role_of
from tests.conformance.shapes import SHAPES, Shape
from tests.support.app import make_app

app = make_app("conformance", result_extended=True, task_send_sent_event=True, rlock_backoff=0.1)
if "RLOCK_CONFORMANCE_PACKAGE" in os.environ:
    importlib.import_module(os.environ["RLOCK_CONFORMANCE_PACKAGE"])


class Watched:
    """Notes each handler that Celery calls."""

    def before_start(self, task_id, args, kwargs):
        note(cell_of(self.name), "before_start", task_id, args=repr(args), kwargs=repr(kwargs))

    def on_success(self, retval, task_id, args, kwargs):
        note(cell_of(self.name), "on_success", task_id, result=repr(retval))

    def on_retry(self, exc, task_id, args, kwargs, einfo):
        note(cell_of(self.name), "on_retry", task_id, error=repr(exc))

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        note(cell_of(self.name), "on_failure", task_id, error=repr(exc))

    def after_return(self, status, retval, task_id, args, kwargs, einfo):
        note(cell_of(self.name), "after_return", task_id, state=status, result=repr(retval))


class Plain(Watched, Task):
    abstract = True


class Locked(Watched, LockedTask):
    abstract = True


@dataclass(frozen=True)
class Kit:
    """What a shape makes its tasks with: the same code makes the plain task and its twins."""

    app: Celery
    cell: str

    @property
    def is_locked(self) -> bool:
        return ".plain." not in self.cell

    @property
    def base(self) -> type:
        return Locked if self.is_locked else Plain

    def options(self, role: str, *, key: str | None = None, **options: Any) -> dict[str, Any]:
        """Options for Celery's decorators. The twin that waits has one key for all tasks of its cell."""
        waits = ".waited." in self.cell
        twin = self.cell.split(".")[1]
        options = {"name": f"{self.cell}.{role}", "base": self.base, **FREE_TWINS.get(twin, {}), **options}
        if self.cell.startswith("late."):
            options["acks_late"] = True
        if self.is_locked and (waits or key):
            options["lock_key"] = self.cell
        return options

    def task(self, **options: Any) -> Callable[[Any], Any]:
        """Celery's decorator, for this twin."""
        return lambda run: self.app.task(shared=False, **self.options(run.__name__, **options))(run)


#: How to publish each cell; an exception if its tasks cannot be defined.
CELLS: dict[str, Callable[[], Any] | Exception] = {}


def define(shape: Shape, ack: str, twin: str) -> Callable[[], Any] | Exception:
    kit = Kit(app, f"{ack}.{twin}.{shape.name}")
    try:
        return shape.define(kit)
    except Exception as error:
        return error


def define_all() -> None:
    app.set_default()  # for shared_task
    app.finalize()  # so that each decorator makes its task at once, and not when the task is first used
    for ack in ACKS:
        for twin in TWINS:
            for shape in SHAPES:
                if twin != "waited" or shape.waits:
                    CELLS[f"{ack}.{twin}.{shape.name}"] = define(shape, ack, twin)


@signals.before_task_publish.connect(weak=False)
def _before_publish(sender, headers, body, **_):
    note(cell_of(sender, body[1]), "before_task_publish", headers["id"], role=role_of(sender))


@signals.after_task_publish.connect(weak=False)
def _after_publish(sender, headers, body, **_):
    note(cell_of(sender, body[1]), "after_task_publish", headers["id"], role=role_of(sender))


@signals.task_prerun.connect(weak=False)
def _prerun(sender, task_id, args, kwargs, **_):
    fields = {"role": role_of(sender.name), "args": repr(args), "kwargs": repr(kwargs)}
    note(cell_of(sender.name, kwargs), "task_prerun", task_id, **fields)


@signals.task_postrun.connect(weak=False)
def _postrun(sender, task_id, kwargs, retval, state, **_):
    fields = {"role": role_of(sender.name), "state": state, "result": repr(retval)}
    note(cell_of(sender.name, kwargs), "task_postrun", task_id, **fields)


@signals.task_success.connect(weak=False)
def _success(sender, result, **_):
    note(cell_of(sender.name, sender.request.kwargs), "task_success", sender.request.id, result=repr(result))


@signals.task_failure.connect(weak=False)
def _failure(sender, task_id, exception, args, kwargs, **_):
    fields = {"error": repr(exception), "args": repr(args), "kwargs": repr(kwargs)}
    note(cell_of(sender.name, kwargs), "task_failure", task_id, **fields)


@signals.task_retry.connect(weak=False)
def _retry(sender, request, reason, **_):
    note(cell_of(sender.name), "task_retry", request.id, reason=repr(reason))


@signals.task_internal_error.connect(weak=False)
def _internal_error(sender, task_id, exception, **_):
    note(cell_of(sender.name), "task_internal_error", task_id, error=repr(exception))


@signals.task_received.connect(weak=False)
def _received(request, **_):
    cell = cell_of(request.name, request.kwargs)
    note(cell, "task_received", request.id, at="worker", role=role_of(request.name))


@signals.task_revoked.connect(weak=False)
def _revoked(sender, request, terminated, signum, expired, **_):
    fields = {"terminated": terminated, "signum": signum, "expired": expired}
    note(cell_of(sender.name), "task_revoked", request.id, at="worker", role=role_of(sender.name), **fields)


@lock_busy.connect(weak=False)
def _busy(sender, request, **_):
    note(cell_of(sender.name), "lock_busy", request.id if request else None)


define_all()
