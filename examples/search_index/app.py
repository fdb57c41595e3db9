"""A shop's search index, which is rebuilt after every edit of a product."""

import os
import time

import redis
from celery import Celery

from celery_rlock import LockedTask

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
TAKES = 0.3  # seconds

app = Celery("search_index", broker=URL)


@app.task
def plain_rebuild(shop: str) -> None:
    write_index("plain_rebuild", shop)


@app.task(base=LockedTask, lock_key="once:{shop}", lock_from="publish")
def rebuild_once(shop: str) -> None:
    write_index("rebuild_once", shop)


@app.task(base=LockedTask, lock_key="index:{shop}", lock_from="publish", lock_pending=1, acks_late=True)
def rebuild_index(shop: str) -> None:
    write_index("rebuild_index", shop)


def write_index(task: str, shop: str) -> None:
    """Read the products first, as every rebuild does. An edit that is made after that is not in the index."""
    with redis.Redis.from_url(URL) as store:
        at_once = store.incr(f"running:{task}:{shop}")
        edits = int(store.get(f"edits:{task}:{shop}") or 0)
        time.sleep(TAKES)
        store.set(f"index:{task}:{shop}", edits)
        store.rpush(f"rebuilds:{task}:{shop}", at_once)  # how many rebuilds of this shop ran
        store.decr(f"running:{task}:{shop}")
