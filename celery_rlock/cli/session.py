"""What every command has: the app, its locks, where to write, and how errors end it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NoReturn, TypeVar

import click
from celery import Celery
from kombu.exceptions import OperationalError

from celery_rlock import settings
from celery_rlock.core.cluster import FAILURES
from celery_rlock.core.entry import Entry, names_of
from celery_rlock.core.inventory import Inventory
from celery_rlock.core.scripts import Scripts
from celery_rlock.core.url import hide_password
from celery_rlock.errors import ConfigurationError, LockUnavailable, RLockError
from celery_rlock.ops.output import Output

FINE, PROBLEM, USAGE, UNREACHABLE = 0, 1, 2, 3

F = TypeVar("F", bound=Callable[..., Any])


class Session:
    """One run of one command."""

    def __init__(self, context: click.Context, *, as_json: bool = False) -> None:
        self.context = context
        self.app: Celery = context.obj.app
        self.output = Output(as_json=as_json, no_color=context.obj.no_color)

    @cached_property
    def scripts(self) -> Scripts:
        if not settings.enabled(self.app):
            raise ConfigurationError("rlock_enabled is False: no task takes a lock, and no server is asked")
        return settings.server(self.app)

    @cached_property
    def inventory(self) -> Inventory:
        return Inventory(self.scripts.client, self.scripts.prefix)

    def find(self, key: str) -> Entry | None:
        """The lock that is meant by `key`: as it is, as it is called in Redis, or as it was shown."""
        if not key:
            raise click.UsageError("the KEY is empty")
        names = names_of(key, self.scripts.prefix)
        found = self.inventory.find(*(name.lock for name in names))
        return next((entry for entry in found if entry is not None), None)

    def end(self, code: int) -> NoReturn:
        self.context.exit(code)


class LockCommand(click.Command):
    """A command whose errors are told without a traceback, and end it with their exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (*FAILURES, LockUnavailable) as error:
            Output.problem(f"error: the lock server cannot be asked: {_reason(error)}", _advice(ctx))
        except OperationalError as error:
            Output.problem(f"error: the broker cannot be asked: {error}", "check broker_url")
        except RLockError as error:
            Output.problem(f"error: {error}", *_missing_app(ctx))
        return ctx.exit(UNREACHABLE)


def json_option(documented: str) -> Callable[[F], F]:
    return click.option("--json", "as_json", is_flag=True, help=documented)


def timeout_option(default: float) -> Callable[[F], F]:
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0),
        default=default,
        show_default=True,
        help="Seconds to wait for the workers' answers; 0 does not ask them.",
    )


def _reason(error: Exception) -> str:
    return error.reason if isinstance(error, LockUnavailable) else f"{type(error).__name__}: {error}"


def _advice(ctx: click.Context) -> str:
    app: Celery = ctx.obj.app
    if app.conf.get("rlock_client") is not None:
        return "check the server, and the client that rlock_client makes"
    return (
        f"check that the server runs, and rlock_url (the locks are looked for at {hide_password(_url(app))})"
    )


def _url(app: Celery) -> str:
    try:
        return settings.lock_url(app)
    except ConfigurationError:
        return "no URL"


def _missing_app(ctx: click.Context) -> list[str]:
    if ctx.find_root().params.get("app") is not None:
        return []
    return ["no app was given: celery -A proj rlock …, where proj is the module of your Celery app"]
