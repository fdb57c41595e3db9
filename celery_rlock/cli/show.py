"""`celery rlock show KEY`: everything about one lock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import click

from celery_rlock.cli import rows
from celery_rlock.cli.by_id import is_uuid
from celery_rlock.cli.session import LockCommand, Session, json_option, timeout_option
from celery_rlock.cli.verdict import Verdict, WorkerAnswers, ask_workers, verdict
from celery_rlock.doctor.output import ExitCode, Output, duration, moment
from celery_rlock.server.lock_record import LockRecord, WaiterRecord, names_of
from celery_rlock.server.owner import HELD
from celery_rlock.server.redis_keys import DIGESTED

#: What the texts of `_log_texts` find.
_LOG_MEANINGS = (
    "every line about this lock: busy, lost, not renewed, not released",
    "every line about the holder's task",
    "only the lines about this run",
)


@dataclass(frozen=True)
class Line:
    """The waiters of a lock: how many, the first of them, and those whose processes are gone."""

    count: int
    first: list[WaiterRecord]
    silent: set[str] | None  #: the listeners that are gone; None: this user may not ask
    gone: int  #: how many waiters belong to them

    @property
    def text(self) -> str:
        """`3, 2 of them gone`."""
        return f"{self.count}, {self.gone} of them gone" if self.gone else str(self.count)

    def is_alive(self, waiter: WaiterRecord) -> bool | None:
        return None if self.silent is None else waiter.listener not in self.silent


@click.command(cls=LockCommand)
@click.argument("key")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Waiters to show.")
@timeout_option(1.0)
@json_option("Write one JSON document.")
@click.pass_context
def show(ctx: click.Context, /, *, key: str, limit: int, timeout: float, as_json: bool) -> None:
    """Show everything about one lock: why it is held, its holder, its waiters in order, what the workers say
    about them, and what to search for in the logs.

    KEY is the key, its Redis key, or the key as `ls` shows it. Exit code 1: the lock is free, or its holder
    seems to be dead.
    """
    session = Session(ctx, as_json=as_json)
    records = session.find(key)
    if not records:
        _report_free(session, key, limit, timeout)
        session.end(ExitCode.PROBLEM)
    lock = records[0].redis_keys.lock
    line = _line(session, lock, limit)
    workers = ask_workers(session.app, lock, timeout)
    holders = [(record, verdict(record, workers)) for record in records]
    if as_json:
        session.output.document(_document(holders, line, workers))
    else:
        _write(session.output, holders, line, workers)
    session.end(ExitCode.FINE if all(judged.is_fine for _, judged in holders) else ExitCode.PROBLEM)


def _line(session: Session, lock: str, limit: int) -> Line:
    inventory = session.inventory
    count, first = inventory.waiters(lock, limit)
    listeners = Counter(waiter.listener for _, waiter in inventory.line(lock)) if count else Counter()
    silent = inventory.silent(lock, listeners)
    return Line(count, first, silent, sum(listeners[listener] for listener in silent or ()))


def _report_free(session: Session, key: str, limit: int, timeout: float) -> None:
    foreign = session.inventory.progress.foreign
    names = names_of(key, session.lock_server.prefix)
    line = next((line for line in (_line(session, n.lock, limit) for n in names) if line.count), None)
    if foreign:
        session.output.problem(f"the Redis key {foreign[0]} is not a lock: delete it")
        return
    workers = ask_workers(session.app, names[0].lock, timeout if line else 0)
    waiters, gone = (line.count, line.gone) if line else (0, 0)
    if session.output.as_json:
        in_line = [_waiter(waiter, line, workers) for waiter in line.first] if line else []
        free = {"key": key, "state": "free", "waiters": waiters, "gone": gone, "in_line": in_line}
        session.output.document(free)
    elif line:
        _write_waiters(session.output, line, workers)
    hint = "celery rlock ls lists the locks that are held"
    if is_uuid(key):
        hint = f"show takes the key of a lock; for the task with this id: celery rlock explain {key}"
    waiting = f"; waiters: {line.text}" if line else ""
    session.output.problem(f"the lock {key!r} is free{waiting}", hint)


_Holders = list[tuple[LockRecord, Verdict]]


def _document(holders: _Holders, line: Line, workers: WorkerAnswers) -> dict[str, Any]:
    """The lock with its first holder; `others` are those in the other places."""
    first, *others = (
        {
            **rows.as_json(record),
            "verdict": judged.text,
            "fine": judged.is_fine,
            "run": workers.run_of(record),
            "grep": _log_texts(record),
        }
        for record, judged in holders
    )
    return {
        **first,
        "others": others,
        "gone": line.gone,
        "in_line": [_waiter(waiter, line, workers) for waiter in line.first],
        "workers": {"asked": workers.asked, "error": workers.error, "answered": sorted(workers.answers)},
    }


def _waiter(waiter: WaiterRecord, line: Line, workers: WorkerAnswers) -> dict[str, Any]:
    found = workers.waiter_in_worker(waiter.task_id)
    return {
        "task_id": waiter.task_id,
        "listener": waiter.listener,
        "since": round(waiter.since, 3),
        "waits_for": round(waiter.waits_for, 3),
        "worker": found[0] if found else None,
        "task": found[1]["task"] if found else None,
        "alive": True if found else line.is_alive(waiter),
    }


def _write(output: Output, holders: _Holders, line: Line, workers: WorkerAnswers) -> None:
    for record, judged in holders:
        output.line((record.key, "bold"), "  ", (record.state, "green" if judged.is_fine else "red"))
        output.line((judged.text, "" if judged.is_fine else "red"))
        for label, text in _facts(record, workers):
            output.line((f"  {label:<9} ", "dim"), text)
    first = holders[0][0]
    _write_waiters(output, line, workers)
    output.line(("in the logs", "bold"), " (logger celery_rlock), search for")
    for text, meaning in zip(_log_texts(first), _LOG_MEANINGS, strict=True):
        output.line(f"  {text}", (f"  ({meaning})", "dim"))


def _facts(record: LockRecord, workers: WorkerAnswers) -> list[tuple[str, str]]:
    facts = [
        ("task", record.task or "none: an RLock"),
        ("task id", record.owner.task_id),
        ("publisher" if record.state == "queued" else "worker", rows.process_of(record)),
        ("since", f"{moment(record.since)} ({duration(record.held_for)} ago)"),
        ("lease", f"{duration(record.lease_left)} left" + " unless renewed" * (record.state == HELD)),
        ("depth", str(record.depth)),
        ("token", str(record.token)),
        ("Redis key", record.redis_keys.lock),
    ]
    if rows.place(record):
        facts.append(("place", rows.place(record)))
    if record.digested:
        facts.append(("key", "longer than shown: its end is a digest"))
    if record.replaced_by:
        facts.append(("ends", f'because task {record.replaced_by} replaces it (lock_busy="replace")'))
    if record.redelivered:
        facts.append(("message", "was redelivered; the redelivery waits for the end of this run"))
    if (run := workers.run_of(record)) is not None:
        since = moment(run["since"])
        facts.append(("runs", f"in process {run['pid']} since {since}, says {record.owner.worker}"))
    if workers.error is not None:
        facts.append(("workers", f"not asked, because the broker does not answer: {workers.error}"))
    return facts


def _write_waiters(output: Output, line: Line, workers: WorkerAnswers) -> None:
    if not line.count:
        return
    output.line(("waiters", "bold"), f" ({line.text}), first come, first served")
    for number, waiter in enumerate(line.first, 1):
        where = _where(waiter, line, workers)
        output.line(f"  {number}. {waiter.task_id}  {duration(waiter.waits_for)}  ", (where, "dim"))
    if line.count > len(line.first):
        output.line(f"  … and {line.count - len(line.first)} more (--limit)")


def _where(waiter: WaiterRecord, line: Line, workers: WorkerAnswers) -> str:
    found = workers.waiter_in_worker(waiter.task_id)
    if found:
        return f"{found[1]['task']} in {found[0]}"
    if line.is_alive(waiter) is False:
        return f"gone: its process has ended (listener {waiter.listener})"
    return f"waits in place, or its worker did not answer (listener {waiter.listener})"


def _log_texts(record: LockRecord) -> list[str]:
    """Texts to search for in the logs of workers and publishers; `_LOG_MEANINGS` says what each finds."""
    key = f"lock {record.key!r}" if not record.digested else f"lock '{record.key.partition(DIGESTED)[0]}"
    return [key, record.owner.task_id, str(record.owner)]
