"""Several keys: a thousand crossed transfers never deadlock; copies of a message run once."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from tests.support.processes import wait_until
from tests.unique.conftest import REDELIVERY

TASKS = 1000
ACCOUNTS = 6


@pytest.mark.timeout(300)
def test_a_thousand_crossed_transfers_all_complete(proj, name, idle, start_fleet, store):
    """Semantics 1: nothing deadlocks, overlaps, is lost or runs twice, and no key stays taken."""
    accounts = [f"{name}-{number}" for number in range(ACCOUNTS)]
    chance = random.Random(name)
    pairs = [chance.sample(accounts, 2) for _ in range(TASKS)]
    assert {tuple(pair) for pair in pairs} >= {(a, b) for a in accounts for b in accounts if a != b}
    with start_fleet(2, queues=[idle], concurrency=4):
        sent = {proj.move.apply_async((*pair, name), queue=idle).id for pair in pairs}
        wait_until(
            lambda: store.hlen(f"runs:{name}") >= TASKS, timeout=240, what="all to complete", every=0.2
        )
        wait_until(lambda: not held(store, name), timeout=10, what="all keys to be free")
    runs = {task_id.decode(): int(times) for task_id, times in store.hgetall(f"runs:{name}").items()}
    assert runs == dict.fromkeys(sent, 1)
    assert store.lrange(f"overlaps:{name}", 0, -1) == []


def held(store, name):
    return [key for key in store.keys(f"rlock:*{name}*") if store.type(key) == b"hash"]


def test_copies_of_a_message_with_several_keys_run_once(proj, name, idle, start_fleet, records, await_free):
    """Semantics 10: delivered again after two seconds, while the run takes five."""
    conf = {"broker_transport_options": REDELIVERY}
    pairs = [(f"{name}-{turn}", f"{name}-x{turn}") for turn in range(4)]
    with start_fleet(2, queues=[idle], concurrency=4, conf=conf) as fleet:
        results = [proj.transfer_late.apply_async((*pair, 5), queue=idle) for pair in pairs]
        for result in results:
            assert result.get(timeout=40) == result.id
        for pair in pairs:
            await_free(f"account:{pair[0]}")
            await_free(f"account:{pair[1]}")
        received = re.findall(r"\[([\w-]+)\] received", "".join(worker.log for worker in fleet))
    assert max(Counter(received).values()) > 1, "nothing was delivered again"
    for source, _ in pairs:
        assert [entry["event"] for entry in records(source)] == ["start", "end"]
