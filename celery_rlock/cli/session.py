"""What every command needs: the app, its locks, its output, and an exit code for every error."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NoReturn, TypeVar

import click
from celery import Celery
from kombu.exceptions import OperationalError

from celery_rlock import settings
from celery_rlock.doctor.output import ExitCode, Output
from celery_rlock.errors import ConfigurationError, LockUnavailable, RLockError
from celery_rlock.server.failures import FAILURES, brief
from celery_rlock.server.inventory import Inventory
from celery_rlock.server.lock_record import LockRecord, names_of
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.server.url import hide_password

F = TypeVar("F", bound=Callable[..., Any])


class Session:
    """One run of one command."""

    def __init__(self, context: click.Context, *, as_json: bool = False) -> None:
        self.context = context
        self.app: Celery = context.obj.app
        self.output = Output(as_json=as_json, no_color=context.obj.no_color)

    @cached_property
    def lock_server(self) -> RedisLockServer:
        if not settings.enabled(self.app):
            raise ConfigurationError("rlock_enabled is False: no task takes a lock")
        if settings.in_memory(self.app):
            raise ConfigurationError(
                "rlock_url is memory://: the locks are in the process that took them, and no command can see "
                "them"
            )
        return settings.redis_server(self.app)

    @cached_property
    def inventory(self) -> Inventory:
        return Inventory(self.lock_server.client, self.lock_server.prefix)

    def find(self, key: str) -> list[LockRecord]:
        """The holders of `key`, which may also be written as its Redis key, or as `ls` shows it."""
        if not key:
            raise click.UsageError("the KEY is empty")
        names = names_of(key, self.lock_server.prefix)
        found = self.inventory.find(*(name.lock for name in names))
        return next((records for records in found if records), [])

    def end(self, code: ExitCode) -> NoReturn:
        self.context.exit(code)


class LockCommand(click.Command):
    """A command that reports errors without a traceback and ends with their exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (*FAILURES, LockUnavailable) as error:
            Output.problem(f"error: cannot use the lock server: {_reason(error)}", _advice(ctx))
        except OperationalError as error:
            Output.problem(f"error: cannot use the broker: {error}", "check broker_url")
        except RLockError as error:
            Output.problem(f"error: {error}", *_missing_app(ctx))
        return ctx.exit(ExitCode.UNREACHABLE)


def json_option(documented: str) -> Callable[[F], F]:
    return click.option("--json", "as_json", is_flag=True, help=documented)


def timeout_option(default: float) -> Callable[[F], F]:
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0),
        default=default,
        show_default=True,
        help="Seconds to wait for the workers' answers; with 0 they are not asked.",
    )


def _reason(error: Exception) -> str:
    return error.reason if isinstance(error, LockUnavailable) else brief(error)


def _advice(ctx: click.Context) -> str:
    app: Celery = ctx.obj.app
    if app.conf.get("rlock_client") is not None:
        return "check the server, and the client that rlock_client makes"
    return f"check that the server runs, and that rlock_url is right: it is {_url(app)}"


def _url(app: Celery) -> str:
    try:
        return hide_password(settings.lock_url(app))
    except ConfigurationError:
        return "no URL"


def _missing_app(ctx: click.Context) -> list[str]:
    if ctx.find_root().params.get("app") is not None:
        return []
    return ["no app was given: use celery -A proj rlock …, where proj is the module of your Celery app"]
