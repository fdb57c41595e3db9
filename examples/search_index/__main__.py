"""A burst of edits, with a rebuild after each: without the lock, unique, and with one pending."""

from __future__ import annotations

import random
import sys
import time
from typing import NamedTuple

from celery import Task
from rich.console import Console

from examples.embedded.celery_processes import CeleryProcesses
from examples.embedded.processes import Processes
from examples.embedded.story import figures, run, wait_until
from examples.embedded.valkey import Valkey
from examples.search_index.app import TAKES, app, plain_rebuild, rebuild_index, rebuild_once

EDITS, SECONDS = 60, 2.0
SHOP = "ann"


class Outcome(NamedTuple):
    """What a burst of edits led to."""

    rebuilds: int
    at_once: int
    missing: int  #: edits that are not in the index at the end


def search_index(console: Console, processes: Processes) -> bool:
    valkey = Valkey(processes)
    app.conf.broker_url = valkey.url
    celery = CeleryProcesses(processes, "examples.search_index.app", {"REDIS_URL": valkey.url})
    celery.start_workers(("worker-1", "worker-2"), "-c", "4")
    console.print(
        f"{EDITS} edits, and a rebuild after each, which takes {TAKES:g} s. "
        "The last edit comes during a rebuild.\n"
        "Two workers with four processes each.\n"
    )
    outcomes = {task.name: _burst(valkey, task) for task in (plain_rebuild, rebuild_once, rebuild_index)}
    table = figures("rebuilds", "at once", "edits missing in the index")
    for title, task in (
        ("without the lock", plain_rebuild),
        ('with lock_from="publish"', rebuild_once),
        ("and lock_pending=1", rebuild_index),
    ):
        table.add_row(title, *map(str, outcomes[task.name]))
    console.print(table)
    pending = outcomes[rebuild_index.name]
    return pending.missing == 0 and pending.at_once == 1 and pending.rebuilds < EDITS / 2


def _burst(valkey: Valkey, task: Task) -> Outcome:
    """Edits come at random moments, and the last one during a rebuild."""
    name = task.name.rpartition(".")[2]
    numbers, published = random.Random(7), set()
    for _ in range(EDITS - 1):
        valkey.client.incr(f"edits:{name}:{SHOP}")
        published.add(task.delay(SHOP).id)
        time.sleep(numbers.uniform(0, 2 * SECONDS / EDITS))
    wait_until(lambda: _done(valkey, name) == len(published), "the rebuilds so far")
    published.add(task.delay(SHOP).id)
    wait_until(lambda: _running(valkey, name), "a rebuild")
    time.sleep(TAKES / 3)
    valkey.client.incr(f"edits:{name}:{SHOP}")
    published.add(task.delay(SHOP).id)
    wait_until(lambda: _done(valkey, name) == len(published), "all rebuilds")
    at_once = [int(count) for count in valkey.client.lrange(f"rebuilds:{name}:{SHOP}", 0, -1)]
    index = int(valkey.client.get(f"index:{name}:{SHOP}"))
    return Outcome(len(at_once), max(at_once), int(valkey.client.get(f"edits:{name}:{SHOP}")) - index)


def _running(valkey: Valkey, name: str) -> bool:
    return int(valkey.client.get(f"running:{name}:{SHOP}") or 0) > 0


def _done(valkey: Valkey, name: str) -> int:
    return int(valkey.client.llen(f"rebuilds:{name}:{SHOP}"))


if __name__ == "__main__":
    sys.exit(run(search_index, "edits are made …"))
