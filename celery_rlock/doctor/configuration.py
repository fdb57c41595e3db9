"""Checks of the app's settings and of its task modules."""

from __future__ import annotations

from collections.abc import Iterator

from celery_rlock import settings
from celery_rlock.doctor.findings import CouldNotLook, Finding, error, named, ok, warn
from celery_rlock.doctor.setup import Setup
from celery_rlock.errors import ConfigurationError
from celery_rlock.options.forgotten import forgotten, forgotten_text
from celery_rlock.options.options import NAMES, OF_UNIQUE_TASKS, SETTINGS, setting_name, unknown_settings

_PREFIX = "rlock_"


def check_settings(setup: Setup) -> Iterator[Finding]:
    conf = setup.app.conf
    for text in unknown_settings(conf):
        yield error(text, "correct its name, or remove it")
    for written, name in _ignored(setup):
        yield error(
            f"Celery ignores the setting {written}, so the default applies",
            f"write {name}, or in upper case with the namespace of config_from_object: CELERY_{name.upper()} "
            'for namespace="CELERY"',
        )
    yield from _without_effect(setup)
    try:
        settings.prefix(setup.app)
        if not settings.enabled(setup.app):
            yield warn("rlock_enabled is False: no task takes a lock", "remove it, except in unit tests")
        elif conf.get("rlock_client") is None:
            settings.lock_url(setup.app)
    except ConfigurationError as wrong:
        yield error(str(wrong), "correct the setting that it names")


def check_password(setup: Setup) -> Iterator[Finding]:
    try:
        found = settings.passwords_in_url(setup.app)
    except ConfigurationError as wrong:
        raise CouldNotLook("rlock_url is not valid", "see the check settings") from wrong
    for setting in found:
        yield warn(
            "rlock_url has a password: celery report and celery inspect conf show it",
            f"move it into the setting {setting}, which Celery masks",
        )


def _without_effect(setup: Setup) -> Iterator[Finding]:
    """Options that only unique tasks use. It is no error, because one call may choose `lock_from`."""
    todo = 'set lock_from="publish", or remove it, unless some calls choose lock_from="publish" themselves'
    others = [locked for locked in setup.tasks if locked.options.from_ != "publish"]
    for name in OF_UNIQUE_TASKS:
        names = [locked.name for locked in others if hasattr(locked.task, f"lock_{name}")]
        if names:
            yield warn(f"lock_{name} of {named(names)} has no effect", todo)
        if others == setup.tasks and setup.app.conf.get(f"{_PREFIX}{name}") is not None:
            yield warn(f"{_PREFIX}{name} has no effect: no task of this app is unique", todo)


def check_tasks(setup: Setup) -> Iterator[Finding]:
    if setup.load_error is not None:
        yield error(
            f"the app's tasks cannot be loaded: {type(setup.load_error).__name__}: {setup.load_error}",
            "correct it, for a worker would not start; the other checks see only the tasks that were loaded",
        )
        return
    for name, options in forgotten(setup.app).items():
        what, _, todo = forgotten_text(name, options).partition(": ")
        yield error(what, todo)
    if not setup.tasks:
        yield warn(
            "no task of this app is locked",
            "name your app with celery -A; give base=LockedTask to the tasks that must not overlap",
        )
    else:
        yield ok(f"{len(setup.tasks)} locked")


def _ignored(setup: Setup) -> Iterator[tuple[str, str]]:
    """Settings written in a form that `app.conf` does not find, each with its right name."""
    conf = setup.app.conf
    known = {f"{_PREFIX}{name}" for name in (*NAMES, *SETTINGS)}
    missing = object()
    for written in map(str, conf):
        name = setting_name(written, conf)
        if name in known and conf.get(name, missing) is missing:
            yield written, name
