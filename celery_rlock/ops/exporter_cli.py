"""`celery -A proj rlock exporter`."""

from __future__ import annotations

import signal
import sys

import click

from celery_rlock import settings


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=9808, show_default=True, help="Port to listen on; 0 takes a free one.")
@click.option(
    "--interval",
    default=15.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="Seconds between two surveys of Redis.",
)
@click.option(
    "--max-tasks",
    default=100,
    show_default=True,
    type=click.IntRange(min=0),
    help="How many tasks get a label of their own; the rest is 'other'.",
)
@click.pass_context
def exporter(ctx: click.Context, host: str, port: int, interval: float, max_tasks: int) -> None:
    """Serve metrics of all locks to Prometheus.

    Counts what workers tell (start them with -E), and surveys Redis.
    """
    try:
        from celery_rlock.ops.exporter import Exporter  # noqa: PLC0415 - an extra
        from celery_rlock.ops.exporter_http import http_server  # noqa: PLC0415
    except ImportError as error:
        raise click.ClickException(f"{error}: pip install celery-rlock[metrics]") from error
    app = ctx.obj.app
    if not settings.enabled(app):
        raise click.ClickException("rlock_enabled is False: there are no locks to tell of")
    source = Exporter(app, interval=interval, most_tasks=max_tasks)
    try:
        server = http_server(source, host, port)
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host}:{port}: {error}") from error
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    source.start()
    click.echo(f"metrics of locks: http://{host}:{server.server_port}/metrics")
    server.serve_forever()
