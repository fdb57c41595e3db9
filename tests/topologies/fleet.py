"""A fleet under load while a fault happens to its lock server, and what that cost."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise

from celery.exceptions import OperationalError

from tests.support.clients import bare_client
from tests.support.processes import wait_until

PROJ = "tests.topologies.proj"
EVERY = 0.04  # a task is published, on one key after the other
SHORT, LONG = 0.02, 1.0
SHORT_KEYS, LONG_KEYS = 3, 2
LONG_EACH = 25  # tasks, a second: those keys are always held, and somebody waits for them
WITHIN = 60.0
LEASE = 6.0  # more than a failover takes; what could not be released lasts so long
ENOUGH = 3  # starts of a key say that work goes on

#: Set by `make topologies` to the page that the table belongs to.
PAGE = "CELERY_RLOCK_TOPOLOGIES_TABLE"
TITLES = ("topology", "what happens to it", "tasks", "overlaps", "lost tasks", "longest pause of a key, s")


@dataclass
class Cost:
    """A row of the table."""

    topology: str
    fault: str
    tasks: int
    overlaps: int
    lost: int
    pause: float

    def cells(self):
        return (
            self.topology,
            self.fault,
            str(self.tasks),
            str(self.overlaps),
            str(self.lost),
            f"{self.pause:.1f}",
        )


class Stream(threading.Thread):
    """Publishes tasks until it is told to end."""

    def __init__(self, client, queue, keys):
        super().__init__(daemon=True)
        self.sent = set()
        self._client, self._queue = client, queue
        self._short, self._long = keys[:SHORT_KEYS], keys[SHORT_KEYS:]
        self._over = threading.Event()
        self.start()

    def run(self):
        for number in itertools.count():
            if self._over.wait(EVERY):
                return
            with contextlib.suppress(OperationalError):  # then it was not published, nor lost
                self._publish(number)

    def _publish(self, number):
        first_two_of_each = number < 2 * LONG_KEYS
        if first_two_of_each or number % LONG_EACH < LONG_KEYS:
            args = (self._long[number % LONG_EACH % LONG_KEYS], LONG)
        else:
            args = (self._short[number % SHORT_KEYS], SHORT)
        self.sent.add(self._client.send_task(f"{PROJ}.work", args, queue=self._queue).id)

    def end(self):
        self._over.set()
        self.join()


class Records:
    """What the tasks of these keys have said."""

    def __init__(self, url, keys):
        self._url, self._keys = url, set(keys)

    def of(self, event):
        with bare_client(self._url) as store:
            entries = [json.loads(entry) for entry in store.lrange("records", 0, -1)]
        return [entry for entry in entries if entry["event"] == event and entry["name"] in self._keys]

    def starts(self):
        """Their times, by key."""
        found = defaultdict(list)
        for entry in self.of("start"):
            found[entry["name"]].append(entry["at"])
        return found

    def completed(self):
        return Counter(entry["id"] for entry in self.of("end"))


def goes_on(records, keys):
    """Work goes on on each of these keys from now on."""
    before = {key: len(times) for key, times in records.starts().items()}

    def each_has_started_again():
        starts = records.starts()
        return all(len(starts[key]) >= before.get(key, 0) + ENOUGH for key in keys)

    wait_until(each_has_started_again, timeout=WITHIN, what="work to go on", every=0.1)


def cost_of(fault, client, queue, keys, store_url):
    """Let the fault happen in the middle of a stream of tasks, and wait for all of them."""
    records = Records(store_url, keys)
    stream = Stream(client, queue, keys)
    short = keys[:SHORT_KEYS]
    goes_on(records, keys)
    fault()
    goes_on(records, keys)
    stream.end()
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not stream.sent - set(records.completed()), timeout=WITHIN, what="all", every=0.2)
    starts = records.starts()
    return {
        "tasks": len(stream.sent),
        "overlaps": len(records.of("overlap")),
        "lost": len(stream.sent - set(records.completed())),
        "pause": max(later - earlier for key in short for earlier, later in pairwise(sorted(starts[key]))),
    }
