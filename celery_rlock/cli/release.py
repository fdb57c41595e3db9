"""`celery rlock release KEY`: free a lock by hand, and tell its waiters."""

from __future__ import annotations

import click

from celery_rlock.core.entry import HELD, Entry
from celery_rlock.ops import rows
from celery_rlock.ops.dead import release_dead
from celery_rlock.ops.fleet import ask
from celery_rlock.ops.session import FINE, PROBLEM, LockCommand, Session, json_option, timeout_option
from celery_rlock.ops.verdict import verdict
from celery_rlock.ops.wording import counted

_RELEASED, _GONE = 1, 0

#: With --force: how often a new owner may come in between.
_FORCED_TRIES = 5


@click.command(cls=LockCommand)
@click.argument("key", required=False)
@click.option(
    "--owner", help="Only if this one holds it, as `show --json` names it: worker/delivery:task-id."
)
@click.option("--force", is_flag=True, help="Whoever holds it by then; with --dead: without the proof.")
@click.option("--dead", is_flag=True, help="All locks of workers that answer no ping, instead of KEY.")
@click.option("--yes", is_flag=True, help="Do not ask before.")
@timeout_option(2.0)
@json_option("One JSON document; needs --yes.")
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

    It shows the holder and asks. Only the holder that was shown loses the lock: if another one has it by
    then, nothing happens. A task that still runs is not stopped; it is told that its lock is lost, and
    another may start. Exit code 1: nothing was released.
    """
    if (key is None) != dead:
        raise click.UsageError("give a KEY, or --dead")
    if dead and not timeout:
        raise click.UsageError("--dead asks the workers: it needs a --timeout")
    if as_json and not yes:
        raise click.UsageError("--json does not ask: it needs --yes")
    session = Session(ctx, as_json=as_json)
    if key is None:
        session.end(release_dead(session, force=force, yes=yes, timeout=timeout))
    entry = session.find(key)
    if entry is None:
        session.end(_tell(session, key, None, f"nobody holds {key!r}"))
    if owner is not None and owner != str(entry.owner):
        session.end(
            _tell(session, key, entry, f"nothing released: {rows.who(entry)} ({entry.owner}) holds {key!r}")
        )
    if not yes:
        _ask_first(session, entry, timeout)
    session.end(_release(session, entry, force=force))


def _ask_first(session: Session, entry: Entry, timeout: float) -> None:
    is_task = entry.state == HELD and not entry.is_script
    fleet = ask(session.app, entry.name.lock, timeout if is_task else 0, entry.owner.worker)
    session.output.line((entry.key, "bold"), "  ", verdict(entry, fleet).text)
    if fleet.run_of(entry) is not None:
        session.output.line(("It still runs: released, another may run at the same time.", "red"))
    click.confirm("Release it?", abort=True)


def _release(session: Session, entry: Entry, *, force: bool) -> int:
    result = session.scripts.release(entry.name, entry.owner, 0)
    for _ in range(_FORCED_TRIES if force else 0):
        if result in {_RELEASED, _GONE}:
            break
        (now,) = session.inventory.find(entry.name.lock)
        entry = now or entry
        result = session.scripts.release(entry.name, entry.owner, 0)
    if result == _RELEASED:
        waking = f"; {counted(entry.waiters, 'waiter')}, the first is woken" if entry.waiters else ""
        return _tell(
            session, entry.key, entry, f"released {entry.key!r}, held by {entry.owner}{waking}", FINE
        )
    if result == _GONE:
        return _tell(session, entry.key, None, f"{entry.key!r} was free by then")
    (now,) = session.inventory.find(entry.name.lock)
    holder = f": {rows.who(now)}" if now else ""
    return _tell(
        session, entry.key, now, f"nothing released: somebody else holds {entry.key!r} by now{holder}"
    )


def _tell(session: Session, key: str, entry: Entry | None, text: str, code: int = PROBLEM) -> int:
    if session.output.as_json:
        held = entry and rows.as_json(entry)
        session.output.document({"key": key, "released": code == FINE, "text": text, "holder": held})
    elif code == FINE:
        session.output.line(text)
    else:
        session.output.problem(text)
    return code
