"""`celery rlock explain TASK …`: what would become of this call, and why."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import click

from celery_rlock.core.entry import Entry
from celery_rlock.errors import ConfigurationError
from celery_rlock.ops import rows
from celery_rlock.ops.arguments import parse
from celery_rlock.ops.fleet import ask
from celery_rlock.ops.outlook import Outlook, Reason, outlook, reasons
from celery_rlock.ops.session import FINE, PROBLEM, LockCommand, Session, json_option, timeout_option
from celery_rlock.ops.verdict import verdict


@click.command(cls=LockCommand)
@click.argument("task")
@click.argument("arguments", nargs=-1)
@click.option(
    "--args", "args_", metavar="JSON", help="Positional arguments as a JSON list, before the others."
)
@click.option("--kwargs", "kwargs_", metavar="JSON", help="Named arguments as a JSON object.")
@timeout_option(1.0)
@json_option("One JSON document.")
@click.pass_context
def explain(
    ctx: click.Context,
    /,
    *,
    task: str,
    arguments: tuple[str, ...],
    args_: str | None,
    kwargs_: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Explain what would happen if TASK were called now with these ARGUMENTS: which keys it takes, who
    holds them, what it would do about it, and which options say so.

    An argument is a JSON value or else a text, name=value a named one; put -- before one that begins with
    a dash. Exit code 0: it runs at once; 1: it does not.
    """
    session = Session(ctx, as_json=as_json)
    found = _task(session, task)
    plan = getattr(found, "_lock_plan", None)
    if plan is None:
        _tell_unlocked(session, found.name)
        session.end(FINE)
    keys = _keys(found, plan, *parse(arguments, args_, kwargs_))
    names = [session.scripts.name(key) for key in keys]
    entries = session.inventory.find(*(name.lock for name in names))
    future = outlook(found, plan.options, entries)
    why = reasons(found, session.app, plan.options, ["key", *(n for n in future.reasons if n != "key")])
    held = dict(zip(keys, entries, strict=True))
    verdicts = {key: _verdict(session, entry, timeout) for key, entry in held.items()}
    _write(session, found.name, held=held, verdicts=verdicts, future=future, why=why)
    session.end(FINE if future.action == "run" else PROBLEM)


def _task(session: Session, name: str) -> Any:
    session.app.loader.import_default_modules()
    tasks = session.app.tasks
    if name in tasks:
        return tasks[name]
    short = [known for known in tasks if known.rpartition(".")[2] == name]
    if len(short) == 1:
        return tasks[short[0]]
    mine = sorted(known for known in tasks if not known.startswith("celery."))
    close = short or difflib.get_close_matches(name, mine, 3, 0.8) or _close_by_ending(name, mine)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(mine) or 'none'}"
    raise click.BadParameter(f"no task is called {name!r}; {hint}", param_hint="TASK")


def _close_by_ending(name: str, tasks: list[str]) -> list[str]:
    endings = {task.rpartition(".")[2]: task for task in tasks}
    return [endings[near] for near in difflib.get_close_matches(name.rpartition(".")[2], list(endings), 3)]


def _tell_unlocked(session: Session, task: str) -> None:
    if session.output.as_json:
        session.output.document({"task": task, "locked": False})
    else:
        session.output.line(
            f"{task} takes no lock: its base is not LockedTask, so no lock keeps it from running"
        )


def _keys(task: Any, plan: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
    try:
        keys: tuple[str, ...] = plan.keys_of(args, kwargs)
    except TypeError as error:
        raise click.UsageError(
            f"{task.name}{inspect.signature(task.run)} cannot be called so: {error}"
        ) from None
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"the key of {task.name} cannot be made: {error!r}") from error
    return keys


def _verdict(session: Session, entry: Entry | None, timeout: float) -> str:
    if entry is None:
        return "free"
    is_task = not entry.is_script and entry.state == "held"
    worker = entry.owner.worker if is_task else None
    return verdict(entry, ask(session.app, entry.name.lock, timeout if is_task else 0, worker)).text


def _write(
    session: Session,
    task: str,
    *,
    held: dict[str, Entry | None],
    verdicts: dict[str, str],
    future: Outlook,
    why: list[Reason],
) -> None:
    output = session.output
    if output.as_json:
        keys = [
            {"key": key, "verdict": verdicts[key], "held": entry and rows.as_json(entry)}
            for key, entry in held.items()
        ]
        because = [reason._asdict() for reason in why]
        output.document(
            {
                "task": task,
                "locked": True,
                "action": future.action,
                "outlook": future.text,
                "keys": keys,
                "why": because,
            }
        )
        return
    output.line((task, "bold"), ": ", (future.text, "green" if future.action == "run" else "yellow"))
    for key, entry in held.items():
        output.line("  key ", (key, "bold"), "  ", (verdicts[key], "green" if entry is None else ""))
    output.line(("why", "bold"))
    for reason in why:
        output.line(f"  {reason.option} = {reason.value}", (f"  ({reason.source})", "dim"))
