from celery import shared_task

from bank.models import Account
from celery_rlock.django import LockedTask


@shared_task(base=LockedTask, lock_key="account:{account_id}")
def deposit(account_id: int, amount: int) -> int:
    return Account.deposit(account_id, amount)


@shared_task(base=LockedTask, lock_key="account:{account_id}")
def audit(account_id: int) -> int:
    return Account.audit(account_id)


@shared_task
def plain_deposit(account_id: int, amount: int) -> int:
    return Account.deposit(account_id, amount)
