"""`celery -A proj rlock …`: see, explain and release the locks of a running fleet."""

from __future__ import annotations

import click

from celery_rlock.ops.doctor import doctor
from celery_rlock.ops.explain import explain
from celery_rlock.ops.ls import ls
from celery_rlock.ops.release import release
from celery_rlock.ops.show import show
from celery_rlock.ops.watch import watch


@click.group()
def rlock() -> None:
    """See, explain and release locks."""


rlock.add_command(ls)
rlock.add_command(show)
rlock.add_command(explain)
rlock.add_command(release)
rlock.add_command(watch)
rlock.add_command(doctor)
