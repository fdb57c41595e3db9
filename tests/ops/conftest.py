"""Apps that have their own tasks only."""

from __future__ import annotations

import pytest
from celery import _state
from celery.app import builtins


@pytest.fixture(autouse=True)
def no_tasks_of_other_apps(monkeypatch):
    """Celery gives every app of a process the tasks of all others, and other tests have theirs."""
    own = {add for add in _state._on_app_finalizers if add.__module__ == builtins.__name__}
    monkeypatch.setattr(_state, "_on_app_finalizers", own)
