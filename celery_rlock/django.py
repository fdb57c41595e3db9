"""`LockedTask` for Django projects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.contrib.django.task import DjangoTask

import celery_rlock

if TYPE_CHECKING:
    _DjangoTask = DjangoTask[Any, Any]  # celery-types makes it generic; Celery's own class is not
else:
    _DjangoTask = DjangoTask


class LockedTask(celery_rlock.LockedTask, _DjangoTask):
    """`celery_rlock.LockedTask` with `delay_on_commit` and `apply_async_on_commit`.

    In a Django project Celery gives these two methods to every task, but `base=` replaces Celery's own base
    class. With `lock_from="publish"` the keys are taken at the commit too, and not at all after a rollback.
    """

    abstract = True
