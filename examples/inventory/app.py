"""The same sale three times: without a lock, with a lock, and with a lock whose token the store checks."""

import os

from celery import Celery

from celery_rlock import LockedTask
from examples.inventory import payment, stock
from examples.inventory.stock import StaleToken

LOCK_TTL = 2  # seconds

app = Celery("inventory", broker=os.environ.get("REDIS_URL", "redis://localhost:6379/0"))


@app.task
def plain_sale(product: int, order: str) -> None:
    left = stock.read(product)
    if left > 0:
        payment.charge(product, order)
        stock.write(product, order, left - 1)


@app.task(base=LockedTask, lock_key="product:{product}", lock_ttl=LOCK_TTL)
def locked_sale(product: int, order: str) -> None:
    left = stock.read(product)
    if left > 0:
        payment.charge(product, order)
        stock.write(product, order, left - 1)


@app.task(
    base=LockedTask,
    bind=True,
    lock_key="product:{product}",
    lock_ttl=LOCK_TTL,
    autoretry_for=(StaleToken,),  # sell again, under a new token
    default_retry_delay=0,
)
def fenced_sale(self: LockedTask, product: int, order: str) -> None:
    left = stock.read(product, self.lock.token)
    if left > 0:
        payment.charge(product, order)
        stock.write(product, order, left - 1, self.lock.token)
