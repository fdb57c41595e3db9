"""lua/replace.lua: who may end whom, and how the holder learns it."""

from __future__ import annotations

import time

import pytest

from celery_rlock.server.lock_server import DONE_MEMORY_MS, Renewal
from celery_rlock.server.owner import Owner
from celery_rlock.server.replies import Replacement
from tests.redis.conftest import DONE, LOCK, NEWEST, TOKEN, UNACKED, WAITERS, WOKEN
from tests.redis.places import PlaceVerbs

TOO_OLD, TOLD, WAIT = 0, 1, 2


def test_the_holder_learns_with_its_next_renewal_who_replaces_it(verbs):
    """Semantics 20: and it keeps the lock until it has ended."""
    verbs.acquire("1:a")
    assert verbs.renew("1:a") == 1
    assert verbs.replace("b", "1:a") == [TOLD, -1, "1:a"]
    assert verbs.renew("1:a", ttl=9000) == "b"
    assert verbs.client.pttl(LOCK) > 8000
    assert verbs.acquire("2:b")[0] == 0


def test_the_newcomer_learns_for_how_long_the_holder_has_known(verbs):
    verbs.acquire("1:a")
    verbs.replace("b", "1:a")
    verbs.renew("1:a")
    time.sleep(0.05)
    verbs.renew("1:a")  # the first renewal counts
    status, ms, _ = verbs.replace("b", "1:a")
    assert status == TOLD
    assert 50 <= ms < 5000


def test_the_next_holder_is_not_told(verbs):
    verbs.acquire("1:a")
    verbs.replace("b", "1:a")
    verbs.renew("1:a")
    verbs.release("1:a")
    verbs.acquire("2:b")
    assert verbs.renew("2:b") == 1
    assert not verbs.client.hexists(LOCK, "@told")


def test_a_late_request_ends_no_run_that_began_after_its_caller_waited(verbs):
    """Semantics 20: the token says when the run began. The same owner may have taken the lock again."""
    verbs.acquire("1:a", attempt="1")
    before = int(verbs.client.hget(LOCK, "@token")) + 1
    verbs.release("1:a")
    verbs.acquire("1:a", attempt="2")
    assert verbs.replace("b", "1:a", before) == [WAIT]
    assert verbs.renew("1:a") == 1


def test_a_call_that_has_the_lock_itself_does_not_end_itself(verbs):
    verbs.acquire("1:a")
    assert verbs.replace("a", "1:a") == [WAIT]
    assert verbs.renew("1:a") == 1


@pytest.mark.parametrize("found", ["1:c", "9:a", "queued:a", "rest:a"])
def test_a_request_for_another_owner_changes_nothing(verbs, found):
    verbs.acquire("1:a")
    assert verbs.replace("b", found) == [WAIT]
    assert verbs.renew("1:a") == 1


def test_a_run_of_another_task_is_waited_for(verbs):
    """Semantics 20: also an RLock, which has no task."""
    for task in ("other", ""):
        verbs.acquire("1:a", task=task)
        assert verbs.replace("b", "1:a") == [WAIT]
        assert verbs.renew("1:a") == 1
        verbs.release("1:a")


@pytest.mark.parametrize("successor", ["queued:a", "rest:a"])
def test_a_task_that_does_not_run_is_waited_for(verbs, successor):
    """Semantics 20: nothing that follows the run inherits the mark."""
    verbs.acquire("1:a")
    verbs.replace("b", "1:a")
    verbs.renew("1:a")
    verbs.release("1:a", successor=successor, lease=5000)
    assert verbs.replace("b", successor) == [WAIT]
    assert not verbs.client.hexists(LOCK, "@replaced")
    assert not verbs.client.hexists(LOCK, "@told")


def test_a_call_that_has_not_looked_finds_the_holder(verbs):
    """A worker without a free process asks before the task is tried."""
    assert verbs.replace("b", "", 0) == [WAIT]
    verbs.acquire("1:a")
    assert verbs.replace("b", "", 0) == [TOLD, -1, "1:a"]
    assert verbs.renew("1:a") == "b"
    verbs.release("1:a", successor="queued:c", lease=5000)
    assert verbs.replace("b", "", 0) == [WAIT]


def test_one_of_several_places_is_waited_for(verbs):
    places = PlaceVerbs(verbs.client)
    places.take("1:a", limit=2)
    assert verbs.replace("b", "1:a") == [WAIT]


def test_a_free_key_has_nothing_to_replace(verbs):
    assert verbs.replace("b", "1:a") == [WAIT]
    assert not verbs.client.exists(LOCK)


def test_an_older_call_learns_of_the_newer_one(verbs):
    """Semantics 20: of several calls only the newest runs, in whatever order they ask."""
    verbs.acquire("1:a")
    now = int(verbs.client.hget(LOCK, "@token"))
    assert verbs.replace("b", "1:a", now + 1) == [TOLD, -1, "1:a"]
    assert verbs.replace("c", "1:a", now + 2) == [TOLD, -1, "1:a"]
    assert verbs.replace("b", "1:a", now + 1) == [TOO_OLD, "c"]
    assert verbs.replace("c", "1:a", now + 2) == [TOLD, -1, "1:a"]
    assert verbs.renew("1:a") == "c"


def test_an_older_call_that_has_the_lock_learns_of_the_newer_one(verbs):
    verbs.acquire("1:a")
    now = int(verbs.client.hget(LOCK, "@token"))
    for task_id, since in (("b", now + 1), ("c", now + 2)):
        verbs.replace(task_id, "1:a", since)
    verbs.release("1:a")
    verbs.acquire("2:b")
    assert verbs.replace("b", "2:b", now + 1) == [TOO_OLD, "c"]
    verbs.release("2:b")
    verbs.acquire("3:c")
    assert verbs.replace("c", "3:c", now + 2) == [WAIT]
    assert verbs.renew("3:c") == 1


def test_calls_of_one_moment_do_not_replace_each_other(verbs):
    verbs.acquire("1:a")
    now = int(verbs.client.hget(LOCK, "@token"))
    for task_id in ("b", "c", "b"):
        assert verbs.replace(task_id, "1:a", now + 1)[0] == TOLD


def test_each_task_has_a_newest_call_of_its_own(verbs):
    verbs.acquire("1:a")
    now = int(verbs.client.hget(LOCK, "@token"))
    assert verbs.replace("x", "1:a", now + 9, task="other") == [WAIT]
    assert verbs.replace("b", "1:a", now + 1) == [TOLD, -1, "1:a"]


def test_the_newest_call_is_forgotten_unless_it_asks_again(verbs):
    verbs.acquire("1:a")
    verbs.replace("b", "1:a", keep=40000)
    assert 30000 < verbs.client.pttl(NEWEST) <= 40000
    verbs.replace("b", "1:a", keep=90000)
    assert verbs.client.pttl(NEWEST) > 80000


def test_a_redelivered_message_of_the_holder_learns_that_it_is_replaced(verbs):
    """Semantics 10 and 20: also when its process dies before it has ended."""
    verbs.acquire("1:a")
    verbs.replace("b", "1:a", done=(DONE,))
    assert 0 < verbs.client.pttl(DONE) <= DONE_MEMORY_MS
    verbs.client.delete(LOCK)  # its lease has ended
    assert verbs.redelivery("a") == "b"
    verbs.unacked("1")
    verbs.acked("1")
    assert verbs.redelivery("a") == "b"


def test_a_run_that_ends_well_before_it_is_told_says_so(verbs):
    verbs.acquire("1:a")
    verbs.acquire("9:a")  # the message is delivered again
    verbs.replace("b", "1:a", done=(DONE,))
    verbs.finish("1:a")
    assert verbs.redelivery("a") == 2


@pytest.mark.parametrize("written", ["", "x", "9" * 400, "1 ", " b", "5"])
def test_what_another_program_wrote_does_no_harm(verbs, written):
    verbs.acquire("1:a")
    verbs.client.hset(NEWEST, "t", written)
    verbs.client.hset(LOCK, "@told", written)
    assert verbs.replace("b", "1:a")[0] in {TOLD, TOO_OLD}
    verbs.client.hset(LOCK, "@token", written)
    assert verbs.replace("b", "1:a")[0] in {TOLD, WAIT, TOO_OLD}


def test_a_newest_call_of_the_future_does_not_count(verbs):
    """The server's clock went back."""
    verbs.acquire("1:a")
    verbs.client.hset(NEWEST, "t", f"{2**52} c")
    assert verbs.replace("b", "1:a") == [TOLD, -1, "1:a"]
    assert verbs.client.hget(NEWEST, "t").endswith(" b")


def test_it_leaves_nothing_but_the_newest_call(verbs):
    verbs.acquire("1:a")
    verbs.replace("b", "1:a")
    verbs.release("1:a")
    assert set(verbs.client.keys()) == {TOKEN, NEWEST}
    assert not verbs.client.exists(UNACKED, WAITERS, WOKEN)


def test_the_lock_server_says_it_in_words(lock_server):
    keys, holder = lock_server.redis_keys("k"), Owner("w", "1", "a")
    taken = lock_server.acquire(keys, holder, 1, 5, "t")
    since = taken.token + 1

    def replace(task_id, since):
        return lock_server.replace(keys, holder, "t", task_id, since, 60, comes_again=False)

    assert replace("b", since) == Replacement(is_told=True, holder=Owner("", "1", "a"))
    assert lock_server.renew([Renewal(keys, holder, taken.token, 5)]) == ["b"]
    heard = replace("b", since).heard_for
    assert heard is not None
    assert 0 <= heard < 5
    assert replace("c", since + 1).is_told
    assert replace("b", since) == Replacement(newer="c")
    assert replace("d", 1) == Replacement(newer="c")
