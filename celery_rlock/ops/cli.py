"""`celery -A proj rlock …`: see, explain and release the locks of a running fleet."""

from __future__ import annotations

import click

from celery_rlock.ops.doctor import doctor
from celery_rlock.ops.exporter_cli import exporter


@click.group()
def rlock() -> None:
    """See, explain and release locks."""


rlock.add_command(exporter)
rlock.add_command(doctor)
