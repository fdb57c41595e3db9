"""`celery rlock release`: free one lock by hand, or the locks of dead workers, and wake the waiters."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Any

import click
from celery import Celery

from celery_rlock.cli import rows
from celery_rlock.cli.session import LockCommand, Session, json_option, timeout_option
from celery_rlock.cli.verdict import ask_holder, ping, verdict
from celery_rlock.core.lock import DEFAULT_TTL
from celery_rlock.doctor.output import ExitCode, counted, duration
from celery_rlock.options.plan import plan_of
from celery_rlock.server.inventory import release_seen
from celery_rlock.server.lock_record import LockRecord, names_of
from celery_rlock.server.owner import HELD
from celery_rlock.server.replies import Release, ReleaseReply

#: With --force: how many times another owner may take the lock before the command gives up.
_FORCED_TRIES = 5

#: Seconds by which a renewal may be late, or two readings of a lease may differ.
_SLACK = 1.0


@click.command(cls=LockCommand)
@click.argument("key", required=False)
@click.option(
    "--owner", help="Release only if this owner holds it, as `show --json` names it: worker/delivery:task-id."
)
@click.option("--force", is_flag=True, help="Release whichever owner holds it; with --dead: without proof.")
@click.option("--dead", is_flag=True, help="Instead of KEY: all locks of workers that answer no ping.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@timeout_option(2.0)
@json_option("Write one JSON document; needs --yes.")
@click.pass_context
def release(
    ctx: click.Context,
    /,
    *,
    key: str | None,
    owner: str | None,
    force: bool,
    dead: bool,
    yes: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """Release the lock of KEY, and wake its first waiter.

    The command shows the holder and asks. Only the holder that was shown loses the lock: if another owner
    has taken it meanwhile, nothing happens. A running task is not stopped; it notices that its lock is lost,
    and another task may start. If the lock is free, the command only wakes its first waiter. Exit code 1:
    nothing was released.
    """
    if (key is None) != dead:
        raise click.UsageError("give a KEY, or --dead")
    if dead and not timeout:
        raise click.UsageError("--dead pings the workers: it needs a --timeout above 0")
    if as_json and not yes:
        raise click.UsageError("--json cannot ask for confirmation: it needs --yes")
    session = Session(ctx, as_json=as_json)
    if key is None:
        session.end(_release_dead(session, force=force, yes=yes, timeout=timeout))
    found = session.find(key)
    if not found:
        session.end(_report(session, key, None, f"the lock {key!r} is free{_wake(session, key)}"))
    holders_only = owner is None and any(not record.pending for record in found)
    records = [
        record
        for record in found
        if owner in {None, str(record.owner)} and not (holders_only and record.pending)
    ]
    if not records:
        holders = ", ".join(f"{rows.holder(record)} ({record.owner})" for record in found)
        session.end(_report(session, key, found[0], f"nothing released: {key!r} is held by {holders}"))
    if not yes:
        _confirm(session, records, timeout)
    session.end(max(_release_one(session, record, force=force) for record in records))


def _wake(session: Session, key: str) -> str:
    """Wake the first waiter of a free lock: whatever deleted the lock in Redis did not."""
    for redis_keys in names_of(key, session.lock_server.prefix):
        count, _ = session.inventory.waiters(redis_keys.lock, 1)
        if count:
            session.lock_server.wake(redis_keys)
            return f"; {counted(count, 'waiter')}, the first is woken"
    return ""


def _confirm(session: Session, records: list[LockRecord], timeout: float) -> None:
    for record in records:
        workers = ask_holder(session.app, record, timeout)
        session.output.line((record.key, "bold"), "  ", verdict(record, workers).text)
        if workers.run_of(record) is not None:
            warning = "It is still running: after the release, another task may run at the same time."
            session.output.line((warning, "red"))
    question = "Release it?" if len(records) == 1 else f"Release all {len(records)}? (--owner chooses one)"
    click.confirm(question, abort=True)


def _release_one(session: Session, record: LockRecord, *, force: bool) -> ExitCode:
    reply = release_seen(session.lock_server, record)
    for _ in range(_FORCED_TRIES if force else 0):
        if reply in {ReleaseReply.RELEASED, ReleaseReply.FREE}:
            break
        record = _in_its_place(session, record) or record
        reply = session.lock_server.release(record.redis_keys, record.owner, Release())
    if reply == ReleaseReply.RELEASED:
        waiters = f"; {counted(record.waiters, 'waiter')}, the first is woken" if record.waiters else ""
        text = f"released {record.key!r}, held by {record.owner}{waiters}"
        return _report(session, record.key, record, text, ExitCode.FINE)
    if reply == ReleaseReply.FREE:
        return _report(session, record.key, None, f"nothing released: {record.key!r} is free by now")
    now = _in_its_place(session, record)
    taker = f": {rows.holder(now)}" if now else ""
    text = f"nothing released: another owner has taken {record.key!r} by now{taker}"
    return _report(session, record.key, now, text)


def _in_its_place(session: Session, record: LockRecord) -> LockRecord | None:
    """The holder that has the same place now."""
    (found,) = session.inventory.find(record.redis_keys.lock)
    return next((now for now in found if now.slot == record.slot and not now.pending), None)


def _report(
    session: Session, key: str, record: LockRecord | None, text: str, code: ExitCode = ExitCode.PROBLEM
) -> ExitCode:
    if session.output.as_json:
        held = record and rows.as_json(record)
        session.output.document({"key": key, "released": code == ExitCode.FINE, "text": text, "holder": held})
    elif code == ExitCode.FINE:
        session.output.line(text)
    else:
        session.output.problem(text)
    return code


@dataclass(frozen=True)
class Suspect:
    """A lock whose worker answered no ping, and why it is kept; None if its holder is proven dead."""

    record: LockRecord
    kept_because: str | None = None


def _release_dead(session: Session, *, force: bool, yes: bool, timeout: float) -> ExitCode:
    """Find the locks of silent workers, prove that each is dead, show them, ask, and release."""
    session.app.loader.import_default_modules()
    held, read_at = _held(session), monotonic()
    alive = ping(session.app, timeout) | ping(session.app, timeout)
    if not alive and not force:
        return _refuse(session)
    silent = [record for record in held if record.owner.worker not in alive]
    suspects = [_judged(session, record, read_at, force=force) for record in silent]
    dead = [suspect.record for suspect in suspects if suspect.kept_because is None]
    if dead and not yes:
        _show(session, suspects)
        click.confirm(f"Release {counted(len(dead), 'lock')}?", abort=True)
    replies = {_name(record): release_seen(session.lock_server, record) for record in dead}
    return _report_dead(session, alive, suspects, replies)


def _name(record: LockRecord) -> tuple[str, str]:
    return record.redis_keys.lock, str(record.owner)


def _held(session: Session) -> list[LockRecord]:
    """A queued or resting lock has no worker that could be dead."""
    return [record for batch in session.inventory.locks() for record in batch if record.state == HELD]


def _judged(session: Session, record: LockRecord, read_at: float, *, force: bool) -> Suspect:
    if record.is_script:
        return Suspect(record, "held by a process that is not a worker and answers no ping")
    (found,) = session.inventory.find(record.redis_keys.lock)
    now = next((now for now in found if now.owner == record.owner), None)
    if now is None:
        return Suspect(record, "released meanwhile")
    if now.lease_left > record.lease_left - (monotonic() - read_at) + _SLACK:
        return Suspect(record, "its lease was renewed just now, so the holder is alive")
    return Suspect(record, None if force else _may_be_alive(session.app, now))


def _may_be_alive(app: Celery, record: LockRecord) -> str | None:
    """Why the holder may be alive; None once it has missed a renewal, which is due every third of a lease."""
    if record.task and record.task not in app.tasks:
        return "this app does not know its task; its workers may use another broker (--force)"
    ttl = _ttl(app.tasks.get(record.task))
    if record.lease_left > ttl * 2 / 3 - _SLACK:
        return f"its lease may have been renewed less than {duration(ttl / 3)} ago; try again later (--force)"
    return None


def _ttl(task: Any) -> float:
    plan = plan_of(task)
    return float(plan.options.ttl) if plan is not None else DEFAULT_TTL


def _refuse(session: Session) -> ExitCode:
    text = "no worker answers at all, so the broker may be the problem (--force releases anyway)"
    if session.output.as_json:
        session.output.document({"alive": [], "released": [], "left": [], "error": text})
    session.output.problem(f"nothing released: {text}")
    return ExitCode.PROBLEM


def _show(session: Session, suspects: list[Suspect]) -> None:
    for suspect in suspects:
        kept = suspect.kept_because
        judged = ("its worker is dead", "red") if kept is None else (f"kept: {kept}", "dim")
        session.output.line((suspect.record.key, "bold"), f"  {rows.holder(suspect.record)}  ", judged)


def _report_dead(
    session: Session, alive: set[str], suspects: list[Suspect], replies: dict[tuple[str, str], ReleaseReply]
) -> ExitCode:
    released = [
        suspect.record for suspect in suspects if replies.get(_name(suspect.record)) == ReleaseReply.RELEASED
    ]
    kept = [
        (suspect.record, suspect.kept_because or "it was released or taken by another owner meanwhile")
        for suspect in suspects
        if suspect.record not in released
    ]
    output = session.output
    if output.as_json:
        output.document(
            {
                "alive": sorted(alive),
                "released": [rows.as_json(record) for record in released],
                "left": [{**rows.as_json(record), "reason": reason} for record, reason in kept],
            }
        )
    else:
        for record in released:
            output.line(f"released {record.key!r}, held by {record.owner}")
        for record, reason in kept:
            output.line(f"kept {record.key!r}: {reason}")
        output.line(f"{counted(len(released), 'lock')} released; {counted(len(alive), 'worker')} answered")
    return ExitCode.FINE if released else ExitCode.PROBLEM
