"""Tasks and requests change one account at the same time. Then each waits for the other."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

from rich.console import Console

from celery_rlock import RLock
from examples.django.website import Site
from examples.embedded.processes import Processes
from examples.embedded.story import figures, run, wait_until

EACH = 20
DEPOSITS = 2 * EACH
THREADS = 4
NEW_ACCOUNT = 1000


def django(console: Console, processes: Processes) -> bool:
    site = Site(processes)
    from bank import tasks  # noqa: PLC0415 - Django must be set up first

    console.print(f"{EACH} tasks and {EACH} requests each add 1 to the same account, at the same time.\n")
    plain = _final_balance(site, tasks.plain_deposit, "plain-deposit")
    locked = _final_balance(site, tasks.deposit, "deposit")
    _show(console, plain, locked)
    each_waits = _task_first(site, tasks, console) and _view_first(site, tasks, console)
    return plain < DEPOSITS and locked == DEPOSITS and each_waits and _on_commit(site, console)


def _final_balance(site: Site, task: Any, action: str) -> int:
    account = _new_account()
    results = [task.delay(account.pk, 1) for _ in range(EACH)]
    with ThreadPoolExecutor(THREADS) as threads:
        answers = list(threads.map(lambda _: site.post(account.pk, action), range(EACH)))
    for result in results:
        result.get(timeout=60)
    if any(answer.status != HTTPStatus.OK for answer in answers):
        raise RuntimeError(f"a request failed: {answers}")
    return _balance(account)


def _show(console: Console, plain: int, locked: int) -> None:
    table = figures("deposits", "balance", "lost")
    for title, balance in (("without the lock", plain), ("with the lock", locked)):
        table.add_row(title, *map(str, (DEPOSITS, balance, DEPOSITS - balance)))
    console.print(table)


def _task_first(site: Site, tasks: Any, console: Console) -> bool:
    account = _new_account()
    audit = tasks.audit.delay(account.pk)
    _await_locked(account)
    refused = site.post(account.pk, "deposit-or-409")
    waited = site.post(account.pk, "deposit")
    changes = audit.get(timeout=60)
    console.print("\nWhile a task holds the lock of the account:")
    console.print(f"  a view that does not wait answers {refused.status}, Retry-After: {refused.retry_after}")
    console.print(f"  a view that waits answers {waited.status}; changes while the task ran: {changes}")
    return (refused.status, waited.status, changes, _balance(account)) == (409, 200, 0, 1)


def _view_first(site: Site, tasks: Any, console: Console) -> bool:
    account = _new_account()
    with ThreadPoolExecutor(1) as thread:
        audit = thread.submit(site.post, account.pk, "audit")
        _await_locked(account)
        deposit = tasks.deposit.delay(account.pk, 1)
        wait_until(lambda: deposit.state != "PENDING", "the task's first attempt")
        state_meanwhile, changes = deposit.state, audit.result().body["changed"]
    deposit.get(timeout=60)
    console.print("\nWhile a view holds the lock of the account:")
    console.print(f"  a task is in state {state_meanwhile}; changes while the view ran: {changes}")
    console.print(f"  after the view the task is in state {deposit.state}")
    return (state_meanwhile, deposit.state, changes, _balance(account)) == ("RETRY", "SUCCESS", 0, 1)


def _on_commit(site: Site, console: Console) -> bool:
    from bank.models import Account  # noqa: PLC0415 - Django must be set up first

    answer = site.post(NEW_ACCOUNT, "deposit-later")
    wait_until(lambda: Account.objects.filter(pk=NEW_ACCOUNT, balance=1).exists(), "the deposit")
    console.print("\nA view makes an account, and publishes a task with delay_on_commit:")
    console.print(f"  the view answers {answer.status}, and the task finds the account: balance 1")
    return answer.status == HTTPStatus.ACCEPTED


def _await_locked(account: Any) -> None:
    wait_until(RLock(f"account:{account.pk}").locked, "the lock of the account")


def _new_account() -> Any:
    from bank.models import Account  # noqa: PLC0415 - Django must be set up first

    return Account.objects.create()


def _balance(account: Any) -> int:
    account.refresh_from_db()
    return int(account.balance)


if __name__ == "__main__":
    sys.exit(run(django, "tasks and requests are running …"))
