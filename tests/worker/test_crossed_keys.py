"""Several keys: crossed transfers never deadlock, and a message that is delivered twice runs once."""

from __future__ import annotations

import random
from itertools import cycle, islice, permutations

import pytest

from tests.support.fleet import deliveries, redelivered_after
from tests.support.processes import wait_until

ACCOUNTS = 6


@pytest.mark.timeout(300)
@pytest.mark.parametrize("tasks", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_crossed_transfers_all_complete(proj, name, queue, start_fleet, store, locks, tasks):
    """Semantics 1: no transfer deadlocks, overlaps, is lost or runs twice, and no key stays taken."""
    accounts = [f"{name}-{number}" for number in range(ACCOUNTS)]
    pairs = list(islice(cycle(permutations(accounts, 2)), tasks))
    random.Random(name).shuffle(pairs)
    with start_fleet(2, queues=[queue], concurrency=4):
        sent = {proj.move.apply_async((*pair, name), queue=queue).id for pair in pairs}
        wait_until(
            lambda: store.hlen(f"runs:{name}") >= tasks, timeout=240, what="all to complete", every=0.2
        )
        wait_until(lambda: not held(locks, name), timeout=10, what="all keys to be free")
    runs = {task_id.decode(): int(times) for task_id, times in store.hgetall(f"runs:{name}").items()}
    assert runs == dict.fromkeys(sent, 1)
    assert store.lrange(f"overlaps:{name}", 0, -1) == []


def held(locks, name):
    return [key for key in locks.keys(f"rlock:*{name}*") if locks.type(key) == b"hash"]


def test_a_redelivered_message_with_several_keys_runs_once(
    proj, name, queue, start_fleet, records, await_free
):
    """Semantics 10: the broker redelivers after a second, while the run takes three."""
    pairs = [(f"{name}-{turn}", f"{name}-x{turn}") for turn in range(4)]
    with start_fleet(2, queues=[queue], concurrency=4, conf=redelivered_after(1)) as fleet:
        results = [proj.transfer_late.apply_async((*pair, 3), queue=queue) for pair in pairs]
        for result in results:
            assert result.get(timeout=40) == result.id
        for pair in pairs:
            await_free(f"account:{pair[0]}")
            await_free(f"account:{pair[1]}")
        received = deliveries(fleet)
    assert max(received.values()) > 1, "no message was redelivered"
    for source, _ in pairs:
        assert [entry["event"] for entry in records(source)] == ["start", "end"]
