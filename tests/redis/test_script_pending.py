"""lua/reserve.lua, queue.lua and unqueue.lua, reply by reply. `test_pending_model.py` orders them freely."""

from __future__ import annotations

import time

import pytest
import redis

from tests.redis.conftest import LOCK, LUA, WAITERS

PENDING = f"{LOCK}:pending"
RESERVATION, LEASE, MEMORY, POSTPONE = 5_000, 60_000, 3_600_000, 900_000
NOT_QUEUED, QUEUED, INSTEAD, NAME_OLDER, LATER = [0], [1], [2], 3, -1


def superseded(task_id):
    return f"{LOCK}:superseded:{task_id}"


class Pending:
    """The scripts with their arguments by name."""

    def __init__(self, client):
        self.client = client

    def reserve(
        self, task_id, attempt="1", *, task="t", deadline=0, limit=1, replace=0, alone=0, kept=0, order=0,
        postpone=POSTPONE, lease=RESERVATION,
    ):  # fmt: skip
        """The reply without the time."""
        args = (task_id, attempt, "w", task, deadline, lease, limit, replace, alone, kept, postpone, order)
        status, time_of_reply, *rest = self._eval("reserve", (PENDING, LOCK, superseded(task_id)), args)
        assert abs(time_of_reply - self.now()) < 60_000_000
        return [status, *rest]

    def queue(self, task_id, attempt="1", *, limit=1, replace=0, older="", lease=LEASE, retry=()):
        keys = (PENDING, LOCK, WAITERS, superseded(older), superseded(task_id))
        args = (task_id, attempt, lease, limit, MEMORY, older, replace, *retry)
        return self._eval("queue", keys, args)

    def unqueue(self, task_id, attempt="", begins=0):
        return self._eval("unqueue", (PENDING, superseded(task_id)), (task_id, attempt, begins))

    def call(self, task_id, attempt="1", **options):
        """Reserve and queue. Returns the order of the call."""
        asked = {name: options[name] for name in ("limit", "replace") if name in options}
        reply = self.reserve(task_id, attempt, **options)
        assert reply[0] == 1, reply
        older = reply[3] if len(reply) > 3 else ""
        assert self.queue(task_id, attempt, older=older, **asked) == (INSTEAD if older else QUEUED)
        return reply[1]

    def now(self):
        seconds, microseconds = self.client.time()
        return seconds * 1_000_000 + microseconds

    def ids(self):
        return sorted(self.client.hkeys(PENDING))

    def _eval(self, verb, keys, args):
        return self.client.eval((LUA / f"{verb}.lua").read_text(), len(keys), *keys, *args)


@pytest.fixture
def pending(script_client):
    return Pending(script_client)


def test_a_request_that_arrives_after_its_caller_gave_up_reserves_nothing(pending, script_client):
    """Semantics 4."""
    assert pending.reserve("a", deadline=pending.now() - 1) == [-2]
    assert pending.ids() == []
    assert pending.reserve("a", deadline=pending.now() + 60_000_000)[0] == 1


def test_a_call_without_an_id_is_refused(pending):
    with pytest.raises(redis.ResponseError, match="must have an id"):
        pending.reserve("")
    assert pending.ids() == []


def test_a_caller_that_finds_no_place_learns_who_has_it(pending):
    """Semantics 19."""
    pending.call("a", task="t\nx")
    [status, ms, owner, worker, task] = pending.reserve("b")
    assert (status, owner, worker, task) == (0, "queued:a", "w", "t x")
    assert LEASE - 10_000 < ms <= LEASE


def test_the_oldest_of_several_is_named(pending):
    first, second = pending.call("x", limit=3), pending.call("a", limit=3)
    assert first < second
    pending.call("m", limit=3)
    assert pending.reserve("b", limit=3)[2] == "queued:x"


def test_a_repeated_request_finds_what_it_has_done(pending):
    """Semantics 4."""
    assert pending.reserve("a")[0] == 1
    order = pending.reserve("a")[1]
    assert pending.queue("a") == pending.queue("a") == QUEUED
    assert pending.reserve("a") == [1, order]
    assert pending.reserve("a", "2")[2] == "queued:a"


def test_another_publication_of_a_call_that_is_being_published_asks_again(pending):
    pending.reserve("a", limit=9)
    assert pending.reserve("a", "2", limit=9) == [2]
    assert pending.reserve("b", limit=1) == [2]


def test_the_keys_expire_with_what_they_say(pending, script_client):
    pending.reserve("a")
    assert RESERVATION - 2000 < script_client.pttl(PENDING) <= RESERVATION
    pending.queue("a")
    assert LEASE - 2000 < script_client.pttl(PENDING) <= LEASE
    pending.reserve("b", limit=2)
    pending.queue("b", limit=2, lease=1000)
    assert script_client.pttl(PENDING) > LEASE - 10_000


def test_a_reservation_that_is_over_does_not_count(pending):
    pending.reserve("a", lease=300)
    pending.client.persist(PENDING)
    time.sleep(0.4)
    assert pending.reserve("b")[0] == 1
    assert pending.ids() == ["b"]
    assert pending.queue("a") == NOT_QUEUED


def test_a_place_that_is_over_does_not_count(pending):
    pending.reserve("a")
    pending.queue("a", lease=1)
    pending.client.persist(PENDING)
    time.sleep(0.01)
    pending.reserve("b", limit=2)
    assert pending.queue("b") == QUEUED
    assert pending.ids() == ["b"]


def test_a_record_of_another_program_is_removed(pending):
    pending.client.hset(PENDING, "x", "text")
    assert pending.reserve("b")[0] == 1
    pending.client.hset(PENDING, "x", "text")
    assert pending.queue("b") == QUEUED
    assert pending.ids() == ["b"]


def test_a_unique_call_is_refused_while_its_task_has_the_key(pending, verbs):
    """Semantics 18: unless another call of it is queued, which runs after that."""
    verbs.acquire("1:r", ttl=20_000, task="t", worker="w1")
    status, ms, owner, worker, task = pending.reserve("b", alone=1)
    assert (status, owner, worker, task) == (0, "1:r", "w1", "t")
    assert 10_000 < ms <= 20_000
    assert pending.reserve("b", task="other", alone=1)[0] == 1
    pending.unqueue("b", "1")
    assert pending.reserve("b", alone=0)[0] == 1


def test_a_unique_call_replaces_the_one_that_is_queued_beside_the_run(pending, verbs):
    verbs.acquire("1:r", task="t")
    pending.call("a")
    assert pending.reserve("b", alone=1, replace=1)[3] == "a"


def test_the_call_that_has_the_key_itself_is_not_one_that_comes_after(pending, verbs):
    verbs.acquire("1:a", task="t")
    pending.call("a")
    status, _, owner, *_ = pending.reserve("b", alone=1, replace=1)
    assert (status, owner) == (0, "1:a")


def test_a_later_call_takes_the_place_of_an_earlier_one(pending, script_client):
    """Semantics 20."""
    pending.call("a")
    status, _, ms, older = pending.reserve("b", replace=1)
    assert (status, older) == (1, "a")
    assert POSTPONE - 10_000 < ms <= POSTPONE
    assert pending.queue("b", replace=1) == [NAME_OLDER, "a"]
    assert pending.queue("b", replace=1, older="a") == INSTEAD
    assert pending.queue("b", replace=1, older="a") == INSTEAD
    assert script_client.get(superseded("a")) == "b"
    assert LEASE + MEMORY - 10_000 < script_client.pttl(superseded("a")) <= LEASE + MEMORY
    assert pending.unqueue("a", begins=1) == [0, "b"]
    assert pending.ids() == ["b"]


def test_the_run_is_postponed_as_long_as_the_first_call_allows(pending):
    pending.call("a", postpone=100_000)
    pending.call("b", replace=1, postpone=900_000)
    ms = pending.reserve("c", replace=1)[2]
    assert 90_000 < ms <= 100_000


@pytest.mark.parametrize("options", [{"kept": 1}, {"postpone": 0}])
def test_a_call_that_cannot_be_superseded_runs_too(pending, script_client, options):
    pending.call("a", **options)
    time.sleep(0.002)
    assert len(pending.reserve("b", replace=1)) == 2
    assert pending.queue("b", replace=1) == QUEUED
    assert pending.ids() == ["b"]
    assert pending.reserve("c")[2] == "queued:b"
    assert not script_client.exists(superseded("a"))


def test_a_call_of_another_task_is_not_superseded(pending):
    pending.call("a", task="other")
    assert pending.reserve("b", replace=1)[2] == "queued:a"
    pending.reserve("b", replace=1, limit=2)
    assert pending.queue("b", replace=1) == NOT_QUEUED
    assert pending.ids() == ["a"]


def test_a_call_that_was_made_earlier_does_not_replace_a_later_one(pending, script_client):
    """Publishers may be faster than each other."""
    pending.reserve("a", replace=1)
    pending.call("b", limit=2, replace=1)
    assert pending.queue("a", replace=1) == [LATER, "b"]
    assert script_client.get(superseded("a")) == "b"
    assert LEASE + MEMORY - 10_000 < script_client.pttl(superseded("a")) <= LEASE + MEMORY
    assert pending.queue("a", replace=1) == [LATER, "b"]
    assert pending.ids() == ["b"]


def test_a_call_with_several_keys_has_one_order(pending):
    assert pending.reserve("a", order=12345) == [1, 12345]


def test_a_call_that_is_published_again_forgets_who_had_superseded_it(pending, script_client):
    script_client.set(superseded("a"), "b")
    pending.reserve("a")
    assert not script_client.exists(superseded("a"))
    assert pending.unqueue("a", "1") == [1]


def test_the_oldest_of_several_is_superseded_whichever_was_queued_first(pending):
    now = pending.now()
    for task_id, order in (("m", now - 200), ("x", now - 300), ("a", now - 100)):
        assert pending.reserve(task_id, limit=3, order=order) == [1, order]
        assert pending.queue(task_id, limit=3) == QUEUED
    pending.reserve("b", limit=3, replace=1)
    assert pending.queue("b", limit=3, replace=1) == [NAME_OLDER, "x"]
    pending.reserve("e", limit=4, replace=1, order=now - 400)
    assert pending.queue("e", limit=3, replace=1) == [LATER, "a"]


@pytest.mark.parametrize("line", [("L/9:1:a", "L/9:2:z"), ("L/9:2:z", "L/9:1:a")])
def test_a_superseded_call_that_waits_is_woken(pending, verbs, script_client, line):
    pending.call("a")
    verbs.acquire("1:r")
    for waiter in line:
        verbs.join(waiter)
    with script_client.pubsub() as wakeups:
        wakeups.subscribe("rlock:wake:L")
        assert wakeups.get_message(timeout=5)["type"] == "subscribe"
        pending.call("b", replace=1)
        said = wakeups.get_message(timeout=5)
        assert said is not None
        word, _, lock, waiter = said["data"].split(" ")
        assert (word, lock, waiter) == ("turn", LOCK, "L/9:1:a")
    assert script_client.zrange(WAITERS, 0, -1) == ["L/9:2:z"]


def test_a_retry_is_queued_while_its_run_has_the_lock(pending, verbs, script_client):
    """Semantics 19."""
    verbs.acquire("1:a")
    token = script_client.hget(LOCK, "@token")
    retry = (token, "w2", "t\n2")
    assert pending.queue("a", "r", retry=(str(int(token) + 1), "w2", "t")) == NOT_QUEUED
    assert pending.queue("a", "r", retry=retry) == QUEUED
    assert pending.queue("a", "r", retry=retry) == QUEUED
    assert pending.queue("a", "r2", retry=retry) == NOT_QUEUED
    assert pending.queue("b", "r", retry=retry) == NOT_QUEUED
    assert pending.reserve("c")[2:] == ["queued:a", "w2", "t 2"]
    assert len(pending.reserve("c", task="t 2", replace=1)) == 2  # no later call may take its place


def test_a_reservation_leaves_no_place_for_a_retry(pending, verbs, script_client):
    verbs.acquire("1:a")
    pending.reserve("b")
    token = script_client.hget(LOCK, "@token")
    assert pending.queue("a", "r", retry=(token, "w", "t")) == NOT_QUEUED


def test_a_run_that_begins_gives_up_its_place(pending):
    pending.reserve("a", "7")
    assert pending.unqueue("a", begins=1) == [2, "7"]
    assert pending.unqueue("a", "other") == [1]
    assert pending.ids() == ["a"]
    pending.queue("a", "7")
    assert pending.unqueue("a", begins=1) == [1]
    assert pending.ids() == []
    assert pending.unqueue("a", begins=1) == [1]


def test_only_the_named_publication_is_withdrawn(pending, script_client):
    pending.call("a", "7")
    assert pending.unqueue("a", "8") == [1]
    assert pending.ids() == ["a"]
    script_client.set(superseded("z"), "a")
    assert pending.unqueue("z", "1") == [1]
    assert pending.unqueue("z") == [0, "a"]
    assert pending.unqueue("a", "7") == [1]
    assert pending.ids() == []
