"""`lock_…` options of a task that is no `LockedTask` are told, and never ignored."""

from __future__ import annotations

import logging

import pytest
from celery import Celery, Task

from celery_rlock import ConfigurationError, LockedTask
from celery_rlock.options import forgotten as module


@pytest.fixture
def app():
    app = Celery("unit", broker="memory://", set_as_current=False)

    @app.task(base=LockedTask, shared=False, name="good")
    def good():
        return None

    return app


def add(app, name, base=None, **options):
    def work():
        return None

    return app.task(work, name=name, base=base, shared=False, **options)


@pytest.mark.parametrize("first", [True, False])
def test_an_app_with_a_locked_task_refuses_options_without_a_lock(first):
    """Semantics 16: whichever of the two tasks is defined first."""
    app = Celery("unit", set_as_current=False)
    names = ["forgotten", "good"] if first else ["good", "forgotten"]
    for name in names:
        add(app, name, **({"base": LockedTask} if name == "good" else {"lock_key": "k", "lock_ttl": 5}))
    with pytest.raises(
        ConfigurationError, match="task forgotten has lock_key, lock_ttl and runs without a lock"
    ):
        app.finalize()


def test_other_names_are_the_users_own(app):
    add(app, "other", lock_account="x", locked=True)
    app.finalize()
    assert module.forgotten(app) == {}


def test_a_class_of_the_users_own_may_have_such_options(app):
    """It may be another lock. The doctor and the worker tell it all the same."""

    class OwnLock(Task):
        abstract = True
        lock_key = "mine"

    add(app, "other", base=OwnLock)
    app.finalize()
    assert module.forgotten(app) == {"other": ["lock_key"]}


def test_annotations_of_all_tasks_are_no_mistake(app):
    app.conf.task_annotations = {"*": {"lock_ttl": 5}}
    add(app, "other")
    app.finalize()
    assert module.forgotten(app) == {}


@pytest.mark.parametrize("by_name", [True, False])
def test_options_of_a_call_without_a_lock_are_an_error_in_the_log(app, caplog, by_name):
    """Celery swallows what a receiver of its signals raises, so the call itself cannot fail."""
    name = f"plain {by_name}"
    plain = add(app, name)
    options = {"lock_busy": "skip", "lock_wait": 1}
    with caplog.at_level(logging.ERROR, "celery_rlock"):
        for _ in range(2):
            app.send_task(name, **options) if by_name else plain.apply_async(**options)
    [line] = caplog.records
    assert f"lock_busy, lock_wait of a call of task {name} has no effect" in line.getMessage()
    assert "test_forgotten" in line.stack_info


def test_options_of_a_locked_call_are_no_error(app, caplog):
    app.tasks["good"].apply_async(lock_busy="skip")
    app.tasks["good"].si().set(lock_wait=1).apply_async()
    add(app, "plain").apply_async(priority=3)
    assert caplog.records == []
