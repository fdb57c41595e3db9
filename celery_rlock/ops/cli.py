"""`celery -A proj rlock …`: see, explain and release the locks of a running fleet."""

from __future__ import annotations

import click

from celery_rlock.ops.doctor import doctor


@click.group()
def rlock() -> None:
    """See, explain and release locks."""


rlock.add_command(doctor)
