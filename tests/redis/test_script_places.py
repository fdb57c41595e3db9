"""A key with a limit: several owners, each in a place of its own."""

from __future__ import annotations

import time

import pytest

from tests.redis.conftest import CHANNEL, DONE, LOCK, TOKEN, WAITERS, WOKEN
from tests.redis.places import BUSY, GONE, LINE, OTHER_FORM, TAKEN, TOO_LATE, PlaceVerbs


@pytest.fixture
def places(verbs):
    return PlaceVerbs(verbs.client)


@pytest.fixture
def listening(each_server):
    """Subscribes as a listener, so that its waiters can be woken. Returns what it heard."""
    client = each_server.client(decode_responses=True)
    pubsub = client.pubsub()
    pubsub.subscribe(f"{CHANNEL}L")
    while pubsub.get_message(timeout=1) is None:
        pass

    def heard(word):
        said = []
        while (message := pubsub.get_message(timeout=0.05)) is not None:
            said += [message["data"].split(" ")] if message["type"] == "message" else []
        return [waiter for what, _, _, waiter in said if what == word]

    yield heard
    pubsub.close()


def owners(client):
    return sorted(client.hkeys(LOCK))


def test_as_many_enter_as_the_limit_says_each_in_a_place_of_its_own(places, script_client):
    """Semantics 17: the third finds no place, and takes none."""
    answers = [places.take(f"{n}:a{n}", limit=2) for n in range(3)]
    assert [answer[0] for answer in answers] == [TAKEN, TAKEN, BUSY]
    assert [slot for _, _, slot in answers[:2]] == [0, 1]
    assert answers[2][2] == "0:a0"  # its lease ends first
    assert owners(script_client) == ["0:a0", "1:a1"]


def test_tokens_grow_with_every_ownership(places):
    """Semantics 14."""
    tokens = []
    for n in range(20):
        tokens.append(places.take(f"{n}:a", limit=3, ttl=1 if n % 2 else 5000)[1])
        if n % 2:
            time.sleep(0.003)
        else:
            assert places.release(f"{n}:a") == 1
    assert tokens == sorted(set(tokens))


def test_the_token_grows_when_the_clock_goes_back(places, script_client):
    """Semantics 14: also beside an owner with a token from the future."""
    ahead = (script_client.time()[0] + 30) * 1_000_000
    script_client.set(TOKEN, ahead, px=60000)
    assert places.take("1:a", limit=3)[1] == ahead + 1
    assert places.take("2:b", limit=3)[1] == ahead + 2
    assert places.release("1:a") == 1
    assert places.release("2:b") == 1
    assert places.take("3:c", limit=3)[1] == ahead + 3


def test_a_dead_owners_place_is_free_after_its_lease_though_others_renew(places, script_client):
    """Semantics 17."""
    places.take("1:dead", limit=2, ttl=200)
    token = places.take("2:alive", limit=2, ttl=200)[1]
    for _ in range(6):
        assert places.renew_place("2:alive", token, ttl=200) == 1
        time.sleep(0.05)
    status, _, slot = places.take("3:c", limit=2)
    assert (status, slot) == (TAKEN, 0)
    assert owners(script_client) == ["2:alive", "3:c"]


def test_an_owner_whose_lease_has_ended_neither_renews_nor_releases_nor_re_enters(places, script_client):
    """Semantics 3 and 7: as with a lock that has expired."""
    token = places.take("1:a", limit=2, ttl=20)[1]
    places.take("2:b", limit=2)
    time.sleep(0.04)
    assert places.renew_place("1:a", token) == 0
    assert places.take("1:a", limit=2, depth=2) == [GONE]
    assert places.release("1:a", fence=str(token)) in {0, -1}
    assert owners(script_client) == ["2:b"]


def test_an_owner_re_enters_its_place_and_leaves_it_level_by_level(places):
    """Semantics 2 and 4: the depth is absolute, so each request may be repeated."""
    first = places.take("1:a", limit=2)
    for depth in (1, 2, 2):
        assert places.take("1:a", limit=2, depth=depth) == first
        assert places.places()["1:a"].depth == depth
    for _ in range(2):
        assert places.release("1:a", depth=1) == 1
        assert places.places()["1:a"].depth == 1
    assert places.release("1:a") == 1


def test_a_re_entry_never_shortens_the_lease(places, script_client):
    places.take("1:a", limit=2, ttl=60000)
    ends = places.places()["1:a"].ends
    places.take("1:a", limit=2, depth=2, ttl=1000)
    assert places.places()["1:a"].ends == ends
    places.take("1:a", limit=2, depth=3, ttl=90000)
    assert places.places()["1:a"].ends > ends
    assert script_client.pttl(LOCK) > 80000


def test_a_late_request_changes_nothing_that_was_taken_since(places):
    """Semantics 3."""
    token = places.take("1:a", limit=2, attempt="10")[1]
    assert places.take("1:a", limit=2, attempt="9") == [TOO_LATE]
    assert places.release("1:a", fence="9") == -1
    assert places.renew_place("1:a", token) == 1
    assert places.renew_place("1:a", token - 1) == 0


def test_a_later_attempt_replaces_the_place_of_a_lost_reply(places, script_client):
    """Semantics 4: the owner never has two places."""
    _, token, slot = places.take("1:a", limit=2, attempt="9")
    status, next_token, next_slot = places.take("1:a", limit=2, attempt="10")
    assert (status, next_slot) == (TAKEN, slot)
    assert next_token > token
    assert owners(script_client) == ["1:a"]


def test_nothing_is_left_when_all_have_left_but_the_last_token(places, script_client):
    for n in range(3):
        places.take(f"{n}:a", limit=3)
    for n in range(3):
        assert places.release(f"{n}:a") == 1
    assert script_client.keys() == [TOKEN]
    assert script_client.pttl(TOKEN) > 0


def test_a_free_place_is_given_the_smallest_slot(places):
    for n in range(4):
        places.take(f"{n}:a", limit=4)
    places.release("1:a")
    places.release("2:a")
    assert [places.take(f"{n}:b", limit=4)[2] for n in (7, 8)] == [1, 2]


class TestDifferentLimits:
    """A deployment changes the limit, or a callable gives different numbers: each owner keeps its own."""

    def test_an_owner_of_the_whole_key_keeps_out_all_who_have_a_limit(self, places, verbs):
        verbs.acquire("1:a")
        assert places.take("2:b", limit=5) == [OTHER_FORM]
        assert verbs.acquire("2:b")[0] == BUSY

    def test_an_owner_with_a_limit_does_not_take_the_whole_key_when_it_becomes_free(self, places, verbs):
        """Its first question said that the key is held as a whole. Others could not enter beside it."""
        verbs.acquire("1:a")
        assert places.take("2:b", limit=2) == [OTHER_FORM]
        assert verbs.acquire("2:b", places=1)[0] == BUSY
        verbs.release("1:a")
        assert verbs.acquire("2:b", places=1) == [OTHER_FORM]
        assert places.take("2:b", limit=2)[0] == TAKEN
        assert places.take("3:c", limit=2)[0] == TAKEN

    def test_an_owner_with_a_limit_keeps_out_an_owner_of_the_whole_key(self, places, verbs):
        places.take("1:a", limit=5)
        assert verbs.acquire("2:b") == [OTHER_FORM]
        assert places.take("2:b", limit=1)[0] == BUSY

    def test_an_owner_with_the_limit_1_among_places_is_alone(self, places):
        places.take("1:a", limit=5, ttl=20)
        time.sleep(0.04)
        assert places.take("2:b", limit=1)[0] == TAKEN
        assert places.take("3:c", limit=5)[0] == BUSY

    def test_lowering_the_limit_evicts_no_owner(self, places, script_client):
        """Semantics 17."""
        tokens = [places.take(f"{n}:a", limit=3)[1] for n in range(3)]
        assert places.take("7:b", limit=2)[0] == BUSY
        assert [places.renew_place(f"{n}:a", tokens[n]) for n in range(3)] == [1, 1, 1]
        places.release("0:a")
        assert places.take("7:b", limit=2)[0] == BUSY
        places.release("1:a")
        assert places.take("7:b", limit=2)[0] == TAKEN
        assert len(owners(script_client)) == 2

    def test_raising_the_limit_counts_when_those_with_the_lower_one_have_left(self, places):
        places.take("1:a", limit=2)
        places.take("2:b", limit=4)
        assert places.take("3:c", limit=4)[0] == BUSY
        places.release("1:a")
        assert [places.take(f"{n}:c", limit=4)[0] for n in (3, 4, 5)] == [TAKEN, TAKEN, TAKEN]


class TestWaiters:
    def test_one_release_wakes_one_waiter(self, places, listening, script_client):
        """Semantics 17."""
        for n in range(2):
            places.take(f"{n}:a", limit=2)
        for n in range(3):
            places.take(f"{n}:b", limit=2, waiter=f"L/2:{n}:b")
        assert places.release("0:a") == 1
        assert listening("turn") == ["L/2:0:b"]
        assert script_client.zcard(WAITERS) == 2

    def test_as_many_are_woken_as_there_are_places(self, places, listening):
        """Three leases end together, and four wait."""
        for n in range(3):
            places.take(f"{n}:a", limit=3, ttl=1000)
        for n in range(4):
            assert places.take(f"{n}:b", limit=3, waiter=f"L/3:{n}:b")[0] == BUSY
        time.sleep(1.1)
        assert places.wait("L/3:0:b") == 0
        places.wake()
        assert listening("turn") == ["L/3:0:b", "L/3:1:b", "L/3:2:b"]

    def test_a_woken_waiter_has_its_place_and_no_newcomer_takes_it(self, places, listening):
        """Semantics 12: no barging."""
        for n in range(2):
            places.take(f"{n}:a", limit=2)
        places.take("1:b", limit=2, waiter="L/2:1:b")
        places.release("0:a")
        assert places.take("9:new", limit=2)[0] == BUSY
        assert places.take("1:b", limit=2)[:1] == [TAKEN]
        assert listening("turn") == ["L/2:1:b"]

    def test_a_newcomer_does_not_overtake_the_line(self, places, listening):
        for n in range(2):
            places.take(f"{n}:a", limit=2, ttl=50)
        places.take("1:b", limit=2, waiter="L/2:1:b")
        time.sleep(0.07)
        assert places.take("9:new", limit=2) == [LINE]
        places.wake()
        assert places.take("9:new", limit=2)[0] == TAKEN  # there is a second place
        assert places.take("8:new", limit=2)[0] == BUSY
        assert places.take("1:b", limit=2)[0] == TAKEN
        assert listening("turn") == ["L/2:1:b"]

    def test_a_turn_that_is_not_used_ends_by_itself(self, places, listening, script_client):
        places.take("0:a", limit=2, ttl=60000)
        places.take("1:a", limit=2, ttl=60000)
        places.take("1:b", limit=2, waiter="L/2:1:b")
        places.release("0:a")
        assert places.wait("L/2:2:c") <= 1000
        deadline = time.monotonic() + 10
        while places.take("9:new", limit=2)[0] == BUSY and time.monotonic() < deadline:
            time.sleep(0.05)
        assert script_client.pttl(LOCK) > 0
        assert listening("turn")[0] == "L/2:1:b"

    def test_a_turn_that_is_given_up_goes_to_the_next_waiter(self, places, listening):
        places.take("0:a", limit=2)
        places.take("1:a", limit=2)
        for n in range(2):
            places.take(f"{n}:b", limit=2, waiter=f"L/2:{n}:b")
        places.release("0:a")
        places.wake(instead_of="L/2:0:b")
        assert listening("turn") == ["L/2:0:b", "L/2:1:b"]

    def test_a_waiter_behind_one_for_the_whole_key_asks_soon_whether_that_has_left(self, places):
        places.take("0:a", limit=2, ttl=30000)
        places.take("1:b", limit=1, waiter="L:1:b")
        assert places.wait("L:1:b") > 1000
        assert places.wait("L/2:2:c") == 1000
        places.client.zrem(WAITERS, "L:1:b")
        assert places.wait("L/2:2:c") == 0

    def test_a_waiter_that_missed_its_turn_and_asked_again_takes_one_place(self, places, listening):
        """Its second turn leaves room for the next waiter."""
        places.take("0:a", limit=2)
        places.take("1:a", limit=2)
        places.take("1:b", limit=2, waiter="L/2:1:b")
        places.release("0:a")
        places.take("2:b", limit=2, waiter="L/2:2:b")
        places.wait("L/2:1:b", since="1")
        places.release("1:a")
        assert listening("turn") == ["L/2:1:b", "L/2:1:b", "L/2:2:b"]

    def test_a_waiter_for_the_whole_key_is_woken_when_all_have_left(
        self, places, verbs, listening, script_client
    ):
        places.take("0:a", limit=2)
        places.take("1:a", limit=2)
        assert verbs.acquire("1:b", waiter="L:1:b") == [OTHER_FORM]
        places.take("1:b", limit=1, waiter="L:1:b")
        places.release("0:a")
        assert places.take("9:new", limit=2)[0] == BUSY
        assert listening("turn") == []
        places.release("1:a")
        assert listening("turn") == ["L:1:b"]
        assert script_client.get(WOKEN) == "L:1:b"
        assert places.take("9:new", limit=2)[0] == BUSY
        assert verbs.acquire("1:b")[0] == TAKEN

    def test_waiters_of_dead_processes_are_passed_over(self, places, listening):
        places.take("0:a", limit=2)
        places.take("1:a", limit=2)
        for n in range(5):
            places.take(f"{n}:b", limit=2, waiter=f"dead/2:{n}:b")
        places.take("9:c", limit=2, waiter="L/2:9:c")
        places.release("0:a")
        assert listening("turn") == ["L/2:9:c"]

    def test_a_turn_is_passed_to_a_waiter_of_another_process(self, places, listening):
        places.take("0:a", limit=2)
        places.take("1:a", limit=2)
        places.take("1:b", limit=2, waiter="M/2:1:b")
        places.take("2:b", limit=2, waiter="L/2:2:b")
        places.client.zrem(WAITERS, "M/2:1:b")
        places.release("0:a")
        assert listening("turn") == ["L/2:2:b"]
        places.wait("M/2:1:b")
        assert places.pass_on("L/2:2:b", "2") == 0  # no process hears of M
        assert "turn:L/2:2:b" not in places.places()


class TestRest:
    """`lock_hold_at_least`: the place stays taken from its start, whatever becomes of its owner."""

    def test_a_place_rests_and_is_free_then(self, places, script_client):
        places.take("1:a", limit=1, hold=300)
        assert places.release("1:a") == 1
        assert owners(script_client) == ["rest.0:a"]
        assert places.take("2:b", limit=1)[:1] == [BUSY]
        assert 0 < script_client.pttl(LOCK) <= 5000
        time.sleep(0.32)
        assert places.take("2:b", limit=1)[0] == TAKEN

    def test_the_rest_counts_from_the_start_also_if_the_lease_is_shorter(self, places):
        """The owner's host dies, and it may have done its work."""
        places.take("1:a", limit=2, ttl=20, hold=400)
        places.take("2:b", limit=2, ttl=5000)
        time.sleep(0.06)
        assert places.take("3:c", limit=2)[0] == BUSY
        time.sleep(0.36)
        assert places.take("3:c", limit=2)[0] == TAKEN

    def test_a_longer_run_frees_its_place_at_its_end(self, places, script_client):
        places.take("1:a", limit=2, hold=20)
        time.sleep(0.04)
        assert places.release("1:a") == 1
        assert not script_client.exists(LOCK)

    def test_the_retries_of_one_task_rest_in_places_of_their_own(self, places, script_client):
        """Otherwise a rate of 20 in a minute would be more."""
        for retry in range(3):
            places.take(f"n.{retry}.0:a", limit=3, hold=5000)
            assert places.release(f"n.{retry}.0:a") == 1
        assert owners(script_client) == ["rest.0:a", "rest.1:a", "rest.2:a"]
        assert places.take("n.3.0:a", limit=3)[0] == BUSY

    def test_an_acquire_that_is_undone_leaves_no_rest(self, places, script_client):
        """Its reply was lost, so nothing has run: only the attempt is known to the caller."""
        places.take("1:a", limit=2, hold=60000, attempt="7")
        assert places.release("1:a", fence="6") == -1
        assert places.release("1:a", fence="7") == 1
        assert not script_client.exists(LOCK)

    def test_a_resting_place_can_be_freed_by_its_name(self, places, script_client):
        """`celery rlock release` does that."""
        token = places.take("1:a", limit=2, hold=60000)[1]
        places.release("1:a")
        assert places.release("rest.0:a", fence=str(token)) == 1
        assert not script_client.exists(LOCK)

    def test_the_next_waiter_learns_that_a_place_rests(self, places, listening):
        places.take("1:a", limit=1, ttl=60000, hold=500)
        places.take("2:b", limit=1, waiter="L:2:b")
        places.release("1:a")
        assert listening("next") == ["L:2:b"]
        assert 0 < places.wait("L:2:b") <= 500


class TestRedelivery:
    def test_a_redelivered_message_gets_no_second_place(self, places):
        """Semantics 10: though a place is free."""
        places.take("1:a", limit=3, task="t")
        status, _, owner, *_ = places.take("2:a", limit=3, task="t")
        assert (status, owner) == (BUSY, "1:a")
        assert places.places()["1:a"].redelivered
        assert places.redelivery("a") == 1

    def test_its_first_delivery_keeps_the_place_until_its_end_is_known_and_tells_it(
        self, places, script_client
    ):
        places.take("1:a", limit=3, task="t")
        assert places.redelivery("a") == 1
        assert places.release("1:a", early=1) == 2
        assert places.finish("1:a") == 1
        assert script_client.get(DONE) == "1"
        assert places.redelivery("a") == 2

    def test_a_message_whose_first_delivery_died_runs(self, places):
        places.take("1:a", limit=3, ttl=20, task="t")
        places.take("7:x", limit=3, task="t")
        time.sleep(0.04)
        assert places.redelivery("a") == 0
        assert places.take("2:a", limit=3, task="t")[0] == TAKEN

    def test_a_retry_is_no_redelivery(self, places):
        places.take("1:a", limit=3, task="t")
        assert places.take("2.1.0:a", limit=3, task="t")[0] == TAKEN

    def test_threads_of_two_processes_with_one_number_are_two_owners(self, places):
        """A fork has the thread numbers of its parent."""
        assert places.take("1:thread-7", limit=3, worker="10@host", task="t")[0] == TAKEN
        assert places.take("2:thread-7", limit=3, worker="11@host", task="t")[0] == TAKEN


@pytest.mark.parametrize("record", ["", "1", "x", "9 9", "\n", "9" * 400])
def test_a_field_of_another_program_keeps_all_out_and_breaks_nothing(places, script_client, record):
    """Semantics 16."""
    script_client.hset(LOCK, "junk:1", record)
    assert places.take("1:a", limit=5, waiter="L/5:1:a")[0] == BUSY
    assert places.wait("L/5:1:a") >= 0
    places.wake()
    assert places.pass_on("L/5:1:a", "1") == 1
    assert places.release("junk:1") == -1
    assert places.renew_place("junk:1", "1") == 0
    assert script_client.hget(LOCK, "junk:1") == record


def record(lease=4_000_000_000_000_000, slot=0, limit=3, token=5):
    return f"{lease} {slot} {limit} 1 {token} 0 1 0 1 w\nt"


HUGE = "9" * 400


@pytest.mark.parametrize(
    "forged",
    [
        record(token=HUGE),
        record(token=2**53),
        record(lease=HUGE),
        record(slot=HUGE),
        record(limit=HUGE),
        record(limit=0),
        record(limit=0, lease=HUGE, token=HUGE),
    ],
)
@pytest.mark.parametrize("field", ["2:b", "2:a"], ids=["another task", "this message"])
def test_forged_numbers_of_a_place_break_no_later_one(places, script_client, forged, field):
    """Each owner that gets in has a token of its own, which renews and releases it."""
    script_client.hset(LOCK, field, forged)
    script_client.pexpire(LOCK, 60000)
    for owner in ("1:a", "3:c"):
        status, *rest = places.take(owner, limit=3, task="t", waiter=f"L/3:{owner}")
        if status == TAKEN:
            assert 1_600_000_000_000_000 < rest[0] < 2**53
            assert places.renew_place(owner, rest[0]) == 1
            assert places.release(owner, fence=rest[0]) == 1
        else:
            assert status in {BUSY, LINE}
        assert places.wait(f"L/3:{owner}") >= 0
        places.wake()
        assert places.pass_on(f"L/3:{owner}", "1") >= 0
    assert places.renew_place(field, "1") == 0
    assert places.release(field, fence="7") == -1


@pytest.mark.parametrize("junk", ["", "junk", "1", HUGE])
def test_junk_in_the_place_of_another_delivery_keeps_out_and_breaks_nothing(places, script_client, junk):
    script_client.hset(LOCK, "9:a", junk)
    assert places.take("1:a", limit=3, task="t")[0] == BUSY
    assert places.redelivery("a") == 1
    assert script_client.hget(LOCK, "9:a") == junk


@pytest.mark.parametrize("limit", ["0", "00", HUGE, "-1", "1e3", ""])
def test_a_forged_waiters_limit_does_not_block_the_line(places, listening, script_client, limit):
    """No process hears it. It stands first, and the living waiters behind it get in."""
    forged = f"dead/{limit}:9:z"
    script_client.zadd(WAITERS, {forged: 1})
    script_client.pexpire(WAITERS, 60000)
    assert places.take("1:a", limit=3, waiter="L/3:1:a")[0] in {LINE, BUSY}
    assert places.wait("L/3:1:a") >= 0
    places.wake()
    assert listening("turn") == ["L/3:1:a"]
    assert places.take("1:a", limit=3, waiter="L/3:1:a")[0] == TAKEN
    assert not script_client.exists(WAITERS)


MANY = 1000


def test_with_a_thousand_owners_no_command_takes_over_10_ms(places, script_client):
    """The contract's cost of limits, with 10,000 waiters whose processes are gone.

    The fastest of three counts, because the machine may be busy.
    """
    for n in range(MANY):
        assert places.take(f"{n}:task-{n}", limit=MANY, ttl=600000, attempt="7")[2] == n
    script_client.zadd(WAITERS, {f"dead/{MANY}:w{n}:waiter": n + 1 for n in range(10 * MANY)})
    token = places.places()["5:task-5"].token
    for verb in (
        lambda: places.take("x:y", limit=MANY),
        lambda: places.take("5:task-5", limit=MANY, depth=2, attempt="7"),
        lambda: places.renew_place("5:task-5", token),
        lambda: places.wait(f"L/{MANY}:1:z"),
        lambda: places.pass_on(f"L/{MANY}:1:z", "1"),
        lambda: places.redelivery("nothing"),
        places.wake,
    ):
        assert min(slowest(script_client, verb) for _ in range(3)) < 10_000
    assert min(slowest(script_client, lambda n=n: places.release(f"{n}:task-{n}")) for n in range(3)) < 10_000


def slowest(client, verb):
    client.config_resetstat()
    verb()
    return client.info("commandstats")["cmdstat_eval"]["usec"]
