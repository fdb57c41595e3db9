"""Whether the app says what its author thinks it says."""

from __future__ import annotations

from collections.abc import Iterator

from celery_rlock import settings
from celery_rlock.checks.finding import Finding, error, ok, warn
from celery_rlock.checks.setup import Setup
from celery_rlock.errors import ConfigurationError
from celery_rlock.options import NAMES, SETTINGS, unknown_settings

_MARK = "rlock_"


def look_at_settings(setup: Setup) -> Iterator[Finding]:
    conf = setup.app.conf
    for text in unknown_settings(conf):
        yield error(text, "correct its name, or remove it")
    for written, name in _unseen(setup):
        yield error(
            f"the setting {written} is not seen, so the default serves",
            f"write {name}, or in upper case with the namespace of config_from_object: CELERY_{name.upper()} "
            'for namespace="CELERY"',
        )
    try:
        settings.prefix(setup.app)
        if not settings.enabled(setup.app):
            yield warn("rlock_enabled is False: nothing is locked", "remove it everywhere but in unit tests")
        elif conf.get("rlock_client") is None:
            settings.lock_url(setup.app)
    except ConfigurationError as wrong:
        yield error(str(wrong), "correct the setting that it names")


def look_at_tasks(setup: Setup) -> Iterator[Finding]:
    if setup.broken is not None:
        yield error(
            f"the app's tasks cannot be loaded: {type(setup.broken).__name__}: {setup.broken}",
            "correct it: a worker does not start so; what follows is about the tasks that could be loaded",
        )
    elif not setup.tasks:
        yield warn(
            "no task of this app is locked",
            "name your app with celery -A; give tasks that must not overlap base=LockedTask",
        )
    else:
        yield ok(f"{len(setup.tasks)} locked")


def _unseen(setup: Setup) -> Iterator[tuple[str, str]]:
    """Settings as they are written, in a way in which `app.conf` does not find them; and their names."""
    known = {f"{_MARK}{name}" for name in (*NAMES, *SETTINGS)}
    missing = object()
    for written in map(str, setup.app.conf):
        before, mark, after = written.lower().partition(_MARK)
        is_ours = mark + after in known and (not before or before.endswith("_"))
        if is_ours and setup.app.conf.get(mark + after, missing) is missing:
            yield written, mark + after
