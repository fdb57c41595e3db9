"""`celery rlock release --dead`: the locks of workers that are gone, after proof."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from celery_rlock.core.entry import HELD, Entry
from celery_rlock.core.lock import DEFAULT_TTL
from celery_rlock.ops import rows
from celery_rlock.ops.fleet import ping
from celery_rlock.ops.session import FINE, PROBLEM, Session
from celery_rlock.ops.wording import counted, duration

if TYPE_CHECKING:
    from celery import Celery

#: A living holder renews its lease each third of it; so much later than that, it has missed it.
_SLACK = 1.0

_RELEASED = 1


@dataclass(frozen=True)
class Finding:
    """A lock and, unless its holder is proven dead, why it is left alone."""

    entry: Entry
    spared: str | None = None


def release_dead(session: Session, *, force: bool, yes: bool, timeout: float) -> int:
    """Find, prove, show, ask, release: the exit code."""
    session.app.loader.import_default_modules()
    held, began = _held(session), monotonic()
    alive = ping(session.app, timeout) | ping(session.app, timeout)
    if not alive and not force:
        return _refuse(session)
    silent = [entry for entry in held if entry.owner.worker not in alive]
    findings = [_judge(session, entry, began, force=force) for entry in silent]
    dead = [finding.entry for finding in findings if finding.spared is None]
    if dead and not yes:
        _show(session, findings)
        click.confirm(f"Release {counted(len(dead), 'lock')}?", abort=True)
    results = {entry.name.lock: session.scripts.release(entry.name, entry.owner, 0) for entry in dead}
    return _tell(session, alive, findings, results)


def _held(session: Session) -> list[Entry]:
    """What is queued or rests has no worker that could be dead."""
    return [entry for batch in session.inventory.locks() for entry in batch if entry.state == HELD]


def _judge(session: Session, entry: Entry, read_at: float, *, force: bool) -> Finding:
    if entry.is_script:
        return Finding(entry, "held by a process that is no worker, and answers no ping")
    (now,) = session.inventory.find(entry.name.lock)
    if now is None or now.owner != entry.owner:
        return Finding(entry, "released meanwhile")
    if now.lease_left > entry.lease_left - (monotonic() - read_at) + _SLACK:
        return Finding(entry, "its lease was renewed just now: the holder lives")
    return Finding(entry, None if force else _not_overdue(session.app, now))


def _not_overdue(app: Celery, entry: Entry) -> str | None:
    if entry.task and entry.task not in app.tasks:
        return "a task that this app does not know, perhaps of a fleet with another broker (--force)"
    ttl = _ttl(app.tasks.get(entry.task))
    if entry.lease_left > ttl * 2 / 3 - _SLACK:
        return f"its lease may have been renewed less than {duration(ttl / 3)} ago; try again later (--force)"
    return None


def _ttl(task: Any) -> float:
    plan = getattr(task, "_lock_plan", None)
    return float(plan.options.ttl) if plan is not None else DEFAULT_TTL


def _refuse(session: Session) -> int:
    text = "no worker answers at all: perhaps it is the broker, not they (--force releases nevertheless)"
    if session.output.as_json:
        session.output.document({"alive": [], "released": [], "left": [], "error": text})
    session.output.problem(f"nothing released: {text}")
    return PROBLEM


def _show(session: Session, findings: list[Finding]) -> None:
    for finding in findings:
        spared = finding.spared
        verdict = ("its worker is dead", "red") if spared is None else (f"left alone: {spared}", "dim")
        session.output.line((finding.entry.key, "bold"), f"  {rows.who(finding.entry)}  ", verdict)


def _tell(session: Session, alive: set[str], findings: list[Finding], results: dict[str, int]) -> int:
    released = [finding.entry for finding in findings if results.get(finding.entry.name.lock) == _RELEASED]
    left = [finding for finding in findings if finding.entry not in released]
    reasons = [finding.spared or "somebody else has it by now, or nobody" for finding in left]
    output = session.output
    if output.as_json:
        spared = [{**rows.as_json(one.entry), "reason": why} for one, why in zip(left, reasons, strict=True)]
        output.document(
            {"alive": sorted(alive), "released": [rows.as_json(entry) for entry in released], "left": spared}
        )
        return FINE if released else PROBLEM
    for entry in released:
        output.line(f"released {entry.key!r}, held by {entry.owner}")
    for finding, reason in zip(left, reasons, strict=True):
        output.line(f"left alone {finding.entry.key!r}: {reason}")
    output.line(f"{counted(len(released), 'lock')} released; {counted(len(alive), 'worker')} answered")
    return FINE if released else PROBLEM
