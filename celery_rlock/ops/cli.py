"""`celery -A proj rlock …`: see, explain and release the locks of a running fleet."""

from __future__ import annotations

import click

from celery_rlock.ops.doctor import doctor
from celery_rlock.ops.explain import explain
from celery_rlock.ops.exporter_cli import exporter
from celery_rlock.ops.ls import ls
from celery_rlock.ops.release import release
from celery_rlock.ops.show import show
from celery_rlock.ops.watch import watch


@click.group()
def rlock() -> None:
    """See, explain, release and measure locks."""


for command in (ls, show, explain, release, watch, doctor, exporter):
    rlock.add_command(command)
