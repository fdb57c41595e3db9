"""`celery rlock explain TASK …`: what would happen to this call now. `explain TASK_ID`: where the task is."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from celery_rlock.cli import rows
from celery_rlock.cli.by_id import explain_id, is_uuid
from celery_rlock.cli.outlook import Outlook, Reason, blocking, outlook, reasons
from celery_rlock.cli.session import LockCommand, Session, json_option, timeout_option
from celery_rlock.cli.verdict import ask_holder, verdict
from celery_rlock.doctor.output import ExitCode
from celery_rlock.errors import ConfigurationError, did_you_mean
from celery_rlock.options.plan import Plan, plan_of
from celery_rlock.server.lock_record import LockRecord

_Computed = TypeVar("_Computed")


@click.command(cls=LockCommand)
@click.argument("task")
@click.argument("arguments", nargs=-1)
@click.option(
    "--args", "args_", metavar="JSON", help="Positional arguments as a JSON list, before the others."
)
@click.option("--kwargs", "kwargs_", metavar="JSON", help="Named arguments as a JSON object.")
@click.option("--id", "by_id", is_flag=True, help="TASK is the id of a task, whatever it looks like.")
@timeout_option(1.0)
@json_option("Write one JSON document.")
@click.pass_context
def explain(
    ctx: click.Context,
    /,
    *,
    task: str,
    arguments: tuple[str, ...],
    args_: str | None,
    kwargs_: str | None,
    by_id: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """Explain what would happen if TASK were called now with these ARGUMENTS: which keys it takes, which
    tasks hold them, what it would do then, and which options decide that.

    An argument is a JSON value, or else a text; name=value is a named argument. Put -- before an argument
    that begins with a dash. Exit code 0: it runs at once; 1: it does not.

    With the id of a task instead of TASK: where that task is now (pending, waiting, running, resting, done or
    unknown), behind which others it waits, and whether its worker lives. A UUID that is no task's name is
    taken for an id; --id says so for any text. Exit code 1: it is unknown, or its worker seems to be dead.
    """
    session = Session(ctx, as_json=as_json)
    words = [*arguments, *filter(None, (args_, kwargs_))]
    if by_id and words:
        raise click.UsageError("--id takes the id of a task and no arguments")
    if by_id or (is_uuid(task) and not words and not _is_name(session, task)):
        session.end(explain_id(session, task, timeout))
    found = _task(session, task)
    plan = plan_of(found)
    if plan is None:
        _report_unlocked(session, found.name)
        session.end(ExitCode.FINE)
    called_with = _parsed(arguments, args_, kwargs_)
    keys = _computed("key", found, plan.keys_of, *called_with)
    names = [session.lock_server.redis_keys(key) for key in keys]
    limits = _computed("limit", found, plan.limits_of, *called_with)
    seen = session.inventory.find(*(name.lock for name in names))
    holders = [[record for record in those if not record.pending] for those in seen]
    pending = [[record for record in those if record.pending] for those in seen]
    records = [blocking(those, limits.get(key, 1)) for key, those in zip(keys, holders, strict=True)]
    future = outlook(found, plan.options, records, pending)
    why = reasons(found, session.app, plan.options, _options(plan, future))
    held = dict(zip(keys, records, strict=True))
    verdicts = {key: _verdict(session, record, timeout) for key, record in held.items()}
    _write(session, found.name, held=held, verdicts=verdicts, future=future, why=why)
    session.end(ExitCode.FINE if future.action == "run" else ExitCode.PROBLEM)


def _is_name(session: Session, name: str) -> bool:
    session.app.loader.import_default_modules()
    return any(name in {known, known.rpartition(".")[2]} for known in session.app.tasks)


def _task(session: Session, name: str) -> Any:
    """The task with this name, or the only one whose last part it is."""
    session.app.loader.import_default_modules()
    tasks = session.app.tasks
    if name in tasks:
        return tasks[name]
    short = [known for known in tasks if known.rpartition(".")[2] == name]
    if len(short) == 1:
        return tasks[short[0]]
    if short:
        raise click.BadParameter(
            f"several tasks end with {name!r}: {', '.join(sorted(short))}", param_hint="TASK"
        )
    known = sorted(known for known in tasks if not known.startswith("celery."))
    said = f"no task is called {name!r}{did_you_mean(name, known)}"
    end = "" if said.endswith("?") else "."
    raise click.BadParameter(f"{said}{end} If it is the id of a task, add --id", param_hint="TASK")


def _parsed(
    words: Sequence[str], args: str | None, kwargs: str | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """`7 amount=3` as `(7,), {"amount": 3}`. A value is JSON, or else the text itself.

    `args` and `kwargs` are JSON, for what words cannot express, such as a positional text with `=`.
    """
    positional = [*_json("--args", args or "[]", list)]
    named = {**_json("--kwargs", kwargs or "{}", dict)}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            named[name] = _value(value)
        else:
            positional.append(_value(word))
    return tuple(positional), named


def _json(option: str, text: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{text!r} is not JSON: {error}", param_hint=option) from None
    if not isinstance(value, kind):
        wanted = "a list" if kind is list else "an object"
        raise click.BadParameter(f"must be {wanted}, not {text!r}", param_hint=option)
    return value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # brackets that are nested too deeply
        return text


def _computed(
    what: str, task: Any, compute: Callable[..., _Computed], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _Computed:
    """The keys or limits of a call. Computing them may run the user's code."""
    try:
        found = compute(args, kwargs)
        if task.typing:
            task.__header__(*args, **kwargs)  # `apply_async` refuses what the keys do not need
    except TypeError as error:
        raise click.UsageError(
            f"{task.name}{inspect.signature(task.run)} does not accept these arguments: {error}"
        ) from None
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"the {what} of {task.name} cannot be computed: {error!r}") from error
    return found


def _options(plan: Plan, future: Outlook) -> list[str]:
    """The options that decide what happens."""
    limit = [] if plan.options.limit == 1 else ["limit"]
    return ["key", *limit, *(name for name in future.reasons if name != "key")]


def _verdict(session: Session, record: LockRecord | None, timeout: float) -> str:
    if record is None:
        return "free"
    return verdict(record, ask_holder(session.app, record, timeout)).text


def _report_unlocked(session: Session, task: str) -> None:
    if session.output.as_json:
        session.output.document({"task": task, "locked": False})
    else:
        session.output.line(f"{task} takes no lock, because its base is not LockedTask: it runs at once")


def _write(
    session: Session,
    task: str,
    *,
    held: dict[str, LockRecord | None],
    verdicts: dict[str, str],
    future: Outlook,
    why: list[Reason],
) -> None:
    output = session.output
    if output.as_json:
        keys = [
            {"key": key, "verdict": verdicts[key], "held": record and rows.as_json(record)}
            for key, record in held.items()
        ]
        output.document(
            {
                "task": task,
                "locked": True,
                "action": future.action,
                "outlook": future.text,
                "keys": keys,
                "why": [reason._asdict() for reason in why],
            }
        )
        return
    output.line((task, "bold"), ": ", (future.text, "green" if future.action == "run" else "yellow"))
    for key, record in held.items():
        output.line("  key ", (key, "bold"), "  ", (verdicts[key], "green" if record is None else ""))
    output.line(("why", "bold"))
    for reason in why:
        output.line(f"  {reason.option} = {reason.value}", (f"  ({reason.source})", "dim"))
