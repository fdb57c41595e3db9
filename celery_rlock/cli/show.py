"""`celery rlock show KEY`: all of one lock."""

from __future__ import annotations

from typing import Any

import click

from celery_rlock.core.entry import DIGESTED, HELD, Entry, WaiterEntry
from celery_rlock.ops import rows
from celery_rlock.ops.fleet import Fleet, ask
from celery_rlock.ops.output import Output
from celery_rlock.ops.session import FINE, PROBLEM, LockCommand, Session, json_option, timeout_option
from celery_rlock.ops.verdict import Verdict, verdict
from celery_rlock.ops.wording import duration, moment

_LOG_MEANINGS = (
    "who found it busy and what became of them, who lost it, what could not be renewed or released",
    "whatever is said of the holder's task",
    "this run of it only",
)


@click.command(cls=LockCommand)
@click.argument("key")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Waiters to show.")
@timeout_option(1.0)
@json_option("One JSON document.")
@click.pass_context
def show(ctx: click.Context, /, *, key: str, limit: int, timeout: float, as_json: bool) -> None:
    """Show all of one lock: why it is held, its holder, its waiters in order, what the workers say of them,
    and what to look for in the logs.

    KEY is the key, its name in Redis, or the key as `ls` shows it. Exit code 1: nobody holds it, or its
    holder does not seem to live.
    """
    session = Session(ctx, as_json=as_json)
    entry = session.find(key)
    if entry is None:
        _tell_free(session, key)
        session.end(PROBLEM)
    _, waiters = session.inventory.waiters(entry.name.lock, limit)
    fleet = ask(session.app, entry.name.lock, timeout)
    said = verdict(entry, fleet)
    if as_json:
        session.output.document(_document(entry, waiters, fleet, said))
    else:
        _write(session.output, entry, waiters, fleet, said)
    session.end(FINE if said.is_fine else PROBLEM)


def _tell_free(session: Session, key: str) -> None:
    if session.inventory.progress.foreign:
        session.output.problem(
            f"the Redis key {session.inventory.progress.foreign[0]} is not a lock: delete it"
        )
        return
    count, _ = session.inventory.waiters(session.scripts.name(key).lock, 1)
    if session.output.as_json:
        session.output.document({"key": key, "state": "free", "waiters": count})
    waiting = f"; {count} waited for it a moment ago, and the first is being woken" if count else ""
    session.output.problem(f"nobody holds {key!r}{waiting}", "celery rlock ls shows what is held")


def _document(entry: Entry, waiters: list[WaiterEntry], fleet: Fleet, said: Verdict) -> dict[str, Any]:
    return {
        **rows.as_json(entry),
        "verdict": said.text,
        "fine": said.is_fine,
        "in_line": [_waiter(waiter, fleet) for waiter in waiters],
        "workers": {"asked": fleet.asked, "error": fleet.error, "answered": sorted(fleet.answers)},
        "run": fleet.run_of(entry),
        "grep": _log_texts(entry),
    }


def _waiter(waiter: WaiterEntry, fleet: Fleet) -> dict[str, Any]:
    found = fleet.worker_of(waiter.task_id)
    return {
        "task_id": waiter.task_id,
        "listener": waiter.listener,
        "since": round(waiter.since, 3),
        "waits_for": round(waiter.waits_for, 3),
        "worker": found[0] if found else None,
        "task": found[1]["task"] if found else None,
    }


def _write(output: Output, entry: Entry, waiters: list[WaiterEntry], fleet: Fleet, said: Verdict) -> None:
    output.line((entry.key, "bold"), "  ", (entry.state, "green" if said.is_fine else "red"))
    output.line((said.text, "" if said.is_fine else "red"))
    for label, text in _facts(entry, fleet):
        output.line((f"  {label:<9} ", "dim"), text)
    _write_waiters(output, entry, waiters, fleet)
    output.line(("in the logs", "bold"), " (logger celery_rlock), grep for")
    for text, meaning in zip(_log_texts(entry), _LOG_MEANINGS, strict=True):
        output.line(f"  {text}", (f"  ({meaning})", "dim"))


def _facts(entry: Entry, fleet: Fleet) -> list[tuple[str, str]]:
    facts = [
        ("task", entry.task or "none: an RLock"),
        ("task id", entry.owner.task_id),
        ("publisher" if entry.state == "queued" else "worker", rows.process_of(entry)),
        ("since", f"{moment(entry.since)} ({duration(entry.held_for)} ago)"),
        ("lease", f"{duration(entry.lease_left)} left" + " unless renewed" * (entry.state == HELD)),
        ("depth", str(entry.depth)),
        ("token", str(entry.token)),
        ("in Redis", entry.name.lock),
    ]
    if entry.digested:
        facts.append(("key", "longer than shown: its end is a digest"))
    if entry.copy:
        facts.append(("copy", "its message was delivered again; the copy waits for the end of this run"))
    if (run := fleet.run_of(entry)) is not None:
        facts.append(
            ("runs", f"in process {run['pid']} since {moment(run['since'])}, says {entry.owner.worker}")
        )
    if fleet.error is not None:
        facts.append(("workers", f"not asked, for the broker does not answer: {fleet.error}"))
    return facts


def _write_waiters(output: Output, entry: Entry, waiters: list[WaiterEntry], fleet: Fleet) -> None:
    if not waiters:
        return
    output.line(("waiters", "bold"), f" ({entry.waiters}), first come, first served")
    for number, waiter in enumerate(waiters, 1):
        found = fleet.worker_of(waiter.task_id)
        where = (
            f"{found[1]['task']} in {found[0]}"
            if found
            else f"in place, or its worker is silent ({waiter.listener})"
        )
        output.line(f"  {number}. {waiter.task_id}  {duration(waiter.waits_for)}  ", (where, "dim"))
    if entry.waiters > len(waiters):
        output.line(f"  … and {entry.waiters - len(waiters)} more (--limit)")


def _log_texts(entry: Entry) -> list[str]:
    """What the lines of this lock and its holder have in common, in the logs of workers and publishers."""
    key = f"lock {entry.key!r}" if not entry.digested else f"lock '{entry.key.partition(DIGESTED)[0]}"
    return [key, entry.owner.task_id, str(entry.owner)]
